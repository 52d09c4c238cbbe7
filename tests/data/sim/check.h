/* What the C programs of these tests share. Each check that fails is one line of output; the status is their number.
 * Declarations are its own: no header of the simulator's is used. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long ptr;
typedef struct opaque *handle;

int cuArray3DCreate_v2(handle *, const void *), cuArrayDestroy(handle), cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxCreate_v3(handle *, void *, int, unsigned, int), cuCtxDestroy_v2(handle), cuCtxFromGreenCtx(handle *, handle);
int cuCtxGetCurrent(handle *), cuCtxGetDevResource(handle, void *, int), cuCtxPopCurrent_v2(handle *);
int cuCtxPushCurrent_v2(handle), cuCtxSetCurrent(handle), cuCtxSynchronize(void), cuDestroyExternalSemaphore(handle);
int cuDevResourceGenerateDesc(handle *, void *, unsigned);
int cuDevSmResourceSplitByCount(void *, unsigned *, const void *, void *, unsigned, unsigned), cuDeviceGet(int *, int);
int cuDeviceGetDefaultMemPool(handle *, int), cuDeviceGetDevResource(int, void *, int);
int cuDeviceGetGraphMemAttribute(int, int, void *), cuDeviceGetLuid(void *, void *, int), cuDeviceGraphMemTrim(int);
int cuDevicePrimaryCtxRelease_v2(int), cuDevicePrimaryCtxReset_v2(int), cuDevicePrimaryCtxRetain(handle *, int);
int cuEventCreate(handle *, unsigned), cuEventDestroy_v2(handle), cuEventElapsedTime(float *, handle, handle);
int cuEventQuery(handle), cuEventRecord(handle, handle), cuEventSynchronize(handle);
int cuGraphAddDependencies_v2(handle, const handle *, const handle *, const void *, size_t);
int cuGraphAddEmptyNode(handle *, handle, const handle *, size_t);
int cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, void *);
int cuGraphAddMemFreeNode(handle *, handle, const handle *, size_t, ptr);
int cuGraphAddNode(handle *, handle, const handle *, size_t, void *);
int cuGraphAddNode_v2(handle *, handle, const handle *, const void *, size_t, void *), cuGraphClone(handle *, handle);
int cuGraphConditionalHandleCreate(handle *, handle, handle, unsigned, unsigned), cuGraphCreate(handle *, unsigned);
int cuGraphDestroy(handle), cuGraphExecDestroy(handle), cuGraphExecNodeSetParams(handle, handle, void *);
int cuGraphExecUpdate_v2(handle, handle, void *), cuGraphGetEdges(handle, handle *, handle *, size_t *);
int cuGraphGetNodes(handle, handle *, size_t *), cuGraphInstantiateWithFlags(handle *, handle, ptr);
int cuGraphLaunch(handle, handle), cuGraphNodeGetType(handle, int *);
int cuGreenCtxCreate(handle *, handle, int, unsigned), cuGreenCtxDestroy(handle);
int cuGreenCtxStreamCreate(handle *, handle, unsigned, int), cuImportExternalSemaphore(handle *, const void *);
int cuInit(unsigned), cuLaunchHostFunc(handle, void (*)(void *), void *);
int cuLaunchHostFunc_ptsz(handle, void (*)(void *), void *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
		   void **);
int cuLaunchKernel_ptsz(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
			void **);
int cuLibraryGetKernel(handle *, handle, const char *);
int cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryUnload(handle), cuMemAddressFree(ptr, size_t), cuMemAddressReserve(ptr *, size_t, size_t, ptr, ptr);
int cuMemAllocAsync(ptr *, size_t, handle), cuMemAllocFromPoolAsync(ptr *, size_t, handle, handle);
int cuMemAllocManaged(ptr *, size_t, unsigned), cuMemAlloc_v2(ptr *, size_t);
int cuMemCreate(ptr *, size_t, const void *, ptr), cuMemExportToShareableHandle(void *, ptr, int, ptr);
int cuMemFreeAsync(ptr, handle), cuMemFreeHost(void *), cuMemFree_v2(ptr);
int cuMemGetAllocationGranularity(size_t *, const void *, int), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemHostRegister_v2(void *, size_t, unsigned);
int cuMemHostUnregister(void *), cuMemImportFromShareableHandle(ptr *, void *, int);
int cuMemMap(ptr, size_t, size_t, ptr, ptr), cuMemPoolCreate(handle *, const void *), cuMemPoolDestroy(handle);
int cuMemPoolGetAttribute(handle, int, void *), cuMemPoolSetAttribute(handle, int, void *);
int cuMemPoolTrimTo(handle, size_t), cuMemRelease(ptr), cuMemSetAccess(ptr, size_t, const void *, size_t);
int cuMemUnmap(ptr, size_t), cuMemcpyAtoH_v2(void *, handle, size_t, size_t), cuMemcpyDtoD_v2(ptr, ptr, size_t);
int cuMemcpyDtoHAsync_v2(void *, ptr, size_t, handle), cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyHtoA_v2(handle, size_t, const void *, size_t), cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemsetD8Async(ptr, unsigned char, size_t, handle), cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuMipmappedArrayCreate(handle *, const void *, unsigned), cuMipmappedArrayDestroy(handle);
int cuMipmappedArrayGetLevel(handle *, handle, unsigned), cuModuleGetFunction(handle *, handle, const char *);
int cuModuleGetGlobal_v2(ptr *, size_t *, handle, const char *), cuModuleLoadData(handle *, const void *);
int cuModuleUnload(handle), cuOccupancyMaxActiveClusters(int *, handle, const void *);
int cuSignalExternalSemaphoresAsync(const handle *, const void *, unsigned, handle);
int cuStreamAddCallback(handle, void (*)(handle, int, void *), void *, unsigned);
int cuStreamBatchMemOp_v2(handle, unsigned, void *, unsigned), cuStreamBeginCapture_v2(handle, int);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamEndCapture(handle, handle *);
int cuStreamGetGreenCtx(handle, handle *), cuStreamIsCapturing(handle, int *), cuStreamQuery(handle);
int cuStreamSynchronize(handle), cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamWaitValue32_v2(handle, ptr, uint32_t, unsigned);
int cuStreamWaitValue32_v2_ptsz(handle, ptr, uint32_t, unsigned);
int cuStreamWaitValue64_v2(handle, ptr, uint64_t, unsigned), cuStreamWriteValue32_v2(handle, ptr, uint32_t, unsigned);
int cuStreamWriteValue64_v2(handle, ptr, uint64_t, unsigned);
int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *,
			   const unsigned *, int, int, int, int);
int cuWaitExternalSemaphoresAsync(const handle *, const void *, unsigned, handle);

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum { NOT_READY = 600, IS_DESTROYED = 709, NOT_REGISTERED = 713, NOT_SUPPORTED = 801 };

static int failures;

#define EXPECT(call, want) expect(#call, __LINE__, (long long)(call), (long long)(want))

static void expect(const char *call, int line, long long got, long long want)
{
	if (got == want)
		return;
	printf("line %d: %s is %lld, expected %lld\n", line, call, got, want);
	failures++;
}

static inline size_t available(void)
{
	size_t left = 0, total;

	EXPECT(cuStreamSynchronize(NULL), OK);
	EXPECT(cuMemGetInfo_v2(&left, &total), OK);
	return left;
}

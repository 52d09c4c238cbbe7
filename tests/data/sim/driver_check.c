/*
 * A CUDA program linked with -lcuda, as a C compiler sees the simulated driver. Each check is one line of output when
 * it fails; the exit status is their number. Declarations are its own: no header of the simulator's is used.
 */
#include <stdio.h>
#include <string.h>

typedef unsigned long long ptr;
typedef struct opaque *handle;

int cuInit(unsigned), cuDeviceGet(int *, int), cuDeviceTotalMem_v2(size_t *, int), cuDeviceGetAttribute(int *, int, int);
int cuDeviceGetPCIBusId(char *, int, int), cuDeviceGetByPCIBusId(int *, const char *);
int cuCtxCreate_v2(handle *, unsigned, int), cuCtxCreate_v3(handle *, void *, int, unsigned, int);
int cuCtxDestroy_v2(handle), cuCtxPushCurrent_v2(handle), cuCtxPopCurrent_v2(handle *), cuCtxGetCurrent(handle *);
int cuCtxSetCurrent(handle), cuCtxGetDevice(int *), cuCtxSynchronize(void), cuCtxGetApiVersion(handle, unsigned *);
int cuCtxGetLimit(size_t *, int), cuCtxSetLimit(int, size_t);
int cuDevicePrimaryCtxRetain(handle *, int), cuDevicePrimaryCtxRelease_v2(int), cuDevicePrimaryCtxReset_v2(int);
int cuDevicePrimaryCtxGetState(int, unsigned *, int *), cuDevicePrimaryCtxSetFlags_v2(int, unsigned);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAllocManaged(ptr *, size_t, unsigned), cuMemAllocPitch_v2(ptr *, size_t *, size_t, size_t, unsigned);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *), cuMemGetAddressRange_v2(ptr *, size_t *, ptr);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuPointerGetAttribute(void *, int, ptr);
int cuMemcpy(ptr, ptr, size_t), cuMemcpyHtoD_v2(ptr, const void *, size_t), cuMemcpyDtoH_v2(void *, ptr, size_t);
int cuMemcpyDtoD_v2(ptr, ptr, size_t), cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, handle);
int cuMemcpyDtoHAsync_v2_ptsz(void *, ptr, size_t, handle), cuMemcpy_ptds(ptr, ptr, size_t);
int cuMemsetD8_v2(ptr, unsigned char, size_t), cuMemsetD16_v2(ptr, unsigned short, size_t);
int cuMemsetD32_v2(ptr, unsigned, size_t), cuMemsetD32Async(ptr, unsigned, size_t, handle);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle), cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned), cuEventCreate(handle *, unsigned), cuEventDestroy_v2(handle);
int cuEventRecord(handle, handle), cuEventQuery(handle), cuEventElapsedTime(float *, handle, handle);
int cuDeviceGetDefaultMemPool(handle *, int), cuMemPoolGetAttribute(handle, int, void *), cuMemPoolDestroy(handle);
int cuMemPoolCreate(handle *, const void *), cuMemAllocFromPoolAsync(ptr *, size_t, handle, handle);
int cuMemAllocAsync(ptr *, size_t, handle), cuMemFreeAsync(ptr, handle);
int cuModuleLoadData(handle *, const void *), cuModuleUnload(handle), cuModuleGetFunction(handle *, handle, const char *);
int cuFuncGetAttribute(int *, int, handle), cuFuncSetAttribute(handle, int, int);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuMemAlloc(unsigned *, unsigned), cuMemFree(unsigned), cuMemGetInfo(unsigned *, unsigned *);
int cuMemcpyHtoD(unsigned, const void *, unsigned), cuMemcpyDtoH(void *, unsigned, unsigned);
int cuGetErrorName(int, const char **), cuGetErrorString(int, const char **), cuGetExportTable(const void **, const void *);

enum { OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_DEVICE = 101, INVALID_IMAGE = 200 };
enum { INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, IS_DESTROYED = 709, NOT_REGISTERED = 713 };

static int failures;

#define EXPECT(call, want) expect(#call, __LINE__, (long long)(call), (long long)(want))

static void expect(const char *call, int line, long long got, long long want)
{
	if (got == want)
		return;
	printf("line %d: %s is %lld, expected %lld\n", line, call, got, want);
	failures++;
}

static size_t available(void)
{
	size_t free_bytes = 0, total;

	EXPECT(cuMemGetInfo_v2(&free_bytes, &total), OK);
	return free_bytes;
}

static void before_init(void)
{
	int device;
	ptr pointer;

	EXPECT(cuDeviceGet(&device, 0), NOT_INITIALIZED);
	EXPECT(cuMemAlloc_v2(&pointer, 1), NOT_INITIALIZED);
	EXPECT(cuInit(1), INVALID_VALUE);
	EXPECT(cuInit(0), OK);
	EXPECT(cuInit(0), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 1), INVALID_CONTEXT);
}

static void devices(void)
{
	int device = -1, value = 0;
	size_t total;
	char bus[16];

	EXPECT(cuDeviceGet(&device, 0), OK);
	EXPECT(device, 0);
	EXPECT(cuDeviceGet(&device, 1), INVALID_DEVICE);
	EXPECT(cuDeviceGet(&device, -1), INVALID_DEVICE);
	EXPECT(cuDeviceTotalMem_v2(&total, 0), OK);
	EXPECT(cuDeviceGetAttribute(&value, 75, 0), OK);
	EXPECT(value, 7);
	EXPECT(cuDeviceGetAttribute(&value, 16, 0), OK);
	EXPECT(value, 40);
	EXPECT(cuDeviceGetPCIBusId(bus, sizeof bus, 0), OK);
	EXPECT(strcmp(bus, "0000:00:04.0"), 0);
	EXPECT(cuDeviceGetByPCIBusId(&device, bus), OK);
	EXPECT(cuDeviceGetByPCIBusId(&device, "0000:99:04.0"), INVALID_DEVICE);
}

static void contexts(void)
{
	handle a, b, current;
	unsigned flags, version;
	int active, device;
	size_t limit;

	EXPECT(cuCtxGetCurrent(&current), OK);
	EXPECT(current == NULL, 1);
	EXPECT(cuCtxCreate_v2(&a, 0, 0), OK);
	EXPECT(cuCtxCreate_v3(&b, NULL, 0, 4, 0), OK);
	EXPECT(cuCtxGetCurrent(&current), OK);
	EXPECT(current == b, 1);
	EXPECT(cuCtxPopCurrent_v2(&current), OK);
	EXPECT(cuCtxGetDevice(&device), OK);
	EXPECT(cuCtxGetApiVersion(a, &version), OK);
	EXPECT(cuCtxSetLimit(0, 4096), OK);
	EXPECT(cuCtxGetLimit(&limit, 0), OK);
	EXPECT(limit, 4096);
	EXPECT(cuCtxDestroy_v2(b), OK);
	EXPECT(cuCtxDestroy_v2(b), IS_DESTROYED);
	EXPECT(cuCtxPushCurrent_v2(b), IS_DESTROYED);
	EXPECT(cuCtxPushCurrent_v2((handle)0x1234), INVALID_CONTEXT);
	EXPECT(cuCtxDestroy_v2(a), OK);
	EXPECT(cuCtxSynchronize(), INVALID_CONTEXT);
	EXPECT(cuCtxPopCurrent_v2(&current), INVALID_CONTEXT);

	EXPECT(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
	EXPECT(cuDevicePrimaryCtxSetFlags_v2(0, 4), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&a, 0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&b, 0), OK);
	EXPECT(a == b, 1);
	EXPECT(cuDevicePrimaryCtxGetState(0, &flags, &active), OK);
	EXPECT(flags * 2 + active, 9);
	EXPECT(cuCtxSetCurrent(a), OK);
	EXPECT(cuDevicePrimaryCtxRelease_v2(0), OK);
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(cuDevicePrimaryCtxRelease_v2(0), OK);
	EXPECT(cuCtxSynchronize(), IS_DESTROYED);
	EXPECT(cuDevicePrimaryCtxRetain(&b, 0), OK);
	EXPECT(a == b, 1);
	EXPECT(cuCtxSynchronize(), OK);
}

static void memory(void)
{
	unsigned char out[1000], back[1000];
	unsigned words[250];
	size_t before = available(), size, pitch;
	ptr a, b, managed, base;
	void *host;
	int type;

	for (unsigned i = 0; i < sizeof out; i++)
		out[i] = (unsigned char)(i * 7);
	EXPECT(cuMemAlloc_v2(&a, 0), INVALID_VALUE);
	EXPECT(cuMemAlloc_v2(&a, 1000), OK);
	EXPECT(cuMemAlloc_v2(&b, 1000), OK);
	EXPECT(before - available(), 2048);
	EXPECT(cuMemcpyHtoD_v2(a, out, sizeof out), OK);
	EXPECT(cuMemcpyDtoD_v2(b, a, sizeof out), OK);
	EXPECT(cuMemcpyDtoH_v2(back, b, sizeof out), OK);
	EXPECT(memcmp(out, back, sizeof out), 0);
	EXPECT(cuMemcpyDtoH_v2(back, b + 999, 2), INVALID_VALUE);
	EXPECT(cuMemcpyDtoH_v2(back, b + 999, 1), OK);
	EXPECT(back[0], out[999]);
	EXPECT(cuMemcpyHtoD_v2((ptr)(size_t)back, out, 1), INVALID_VALUE);
	EXPECT(cuMemcpyHtoDAsync_v2(b, out + 1, 10, NULL), OK);
	EXPECT(cuMemcpyDtoHAsync_v2_ptsz(back, b, 10, (handle)2), OK);
	EXPECT(memcmp(out + 1, back, 10), 0);
	EXPECT(cuMemcpy_ptds((ptr)(size_t)back, a, 10), OK);
	EXPECT(memcmp(out, back, 10), 0);

	EXPECT(cuMemsetD32_v2(a, 0xdeadbeef, 250), OK);
	EXPECT(cuMemsetD16_v2(a + 2, 0x1234, 1), OK);
	EXPECT(cuMemsetD8_v2(a, 0xff, 1), OK);
	EXPECT(cuMemsetD32_v2(a + 1, 0, 1), INVALID_VALUE);
	EXPECT(cuMemsetD32_v2(a, 0, 251), INVALID_VALUE);
	EXPECT(cuMemcpyDtoH_v2(words, a, sizeof words), OK);
	EXPECT(words[0], 0x1234beff);
	EXPECT(words[249], 0xdeadbeef);

	EXPECT(cuMemGetAddressRange_v2(&base, &size, a + 500), OK);
	EXPECT(base == a && size == 1000, 1);
	EXPECT(cuPointerGetAttribute(&type, 2, a), OK);
	EXPECT(type, 2);
	EXPECT(cuMemFree_v2(a + 1), INVALID_VALUE);
	EXPECT(cuMemFree_v2(a), OK);
	EXPECT(cuMemFree_v2(b), OK);
	EXPECT(cuMemcpyDtoH_v2(back, b, 1), INVALID_VALUE);

	EXPECT(cuMemAllocManaged(&managed, 100, 1), OK);
	((char *)(size_t)managed)[99] = 42;
	EXPECT(cuMemcpyDtoH_v2(back, managed, 100), OK);
	EXPECT(back[99], 42);
	EXPECT(cuMemFree_v2(managed), OK);
	EXPECT(cuMemAllocPitch_v2(&a, &pitch, 100, 3, 4), OK);
	EXPECT(pitch, 512);
	EXPECT(cuMemFree_v2(a), OK);

	EXPECT(cuMemHostAlloc(&host, 100, 1), OK);
	memset(host, 1, 100);
	EXPECT(cuMemFree_v2((ptr)(size_t)host), INVALID_VALUE);
	EXPECT(cuMemFreeHost(host), OK);
	EXPECT(cuMemHostRegister_v2(back, sizeof back, 0), OK);
	EXPECT(cuPointerGetAttribute(&type, 2, (ptr)(size_t)back), OK);
	EXPECT(type, 1);
	EXPECT(cuMemHostUnregister(back), OK);
	EXPECT(cuMemHostUnregister(back), NOT_REGISTERED);
	EXPECT(available(), before);
}

/* More than this machine has: only touched pages cost anything. */
static void large(void)
{
	size_t size = available() / 512 * 512;
	ptr pointer;
	char byte = 5;

	EXPECT(cuMemAlloc_v2(&pointer, size + 512), OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&pointer, (size_t)-1), OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&pointer, size), OK);
	EXPECT(cuMemcpyHtoD_v2(pointer + size - 1, &byte, 1), OK);
	byte = 0;
	EXPECT(cuMemcpyDtoH_v2(&byte, pointer + size - 1, 1), OK);
	EXPECT(byte, 5);
	EXPECT(cuMemFree_v2(pointer), OK);
}

/* The unversioned names have 32-bit pointers: nothing beyond them is written. */
static void first_versions(void)
{
	unsigned pointer[2] = {0, 0x5a5a5a5a}, numbers[3] = {0, 0, 0x5a5a5a5a};
	size_t before = available();
	char out[] = "first", back[sizeof out];

	EXPECT(cuMemAlloc(pointer, 6), OK);
	EXPECT(pointer[1], 0x5a5a5a5a);
	EXPECT(before - available(), 512);
	EXPECT(cuMemcpyHtoD(pointer[0], out, sizeof out), OK);
	EXPECT(cuMemcpyDtoH(back, pointer[0], sizeof out), OK);
	EXPECT(strcmp(out, back), 0);
	EXPECT(cuMemFree(pointer[0]), OK);
	EXPECT(cuMemGetInfo(numbers, numbers + 1), OK);
	EXPECT(numbers[1], 0xffffffff);
	EXPECT(numbers[2], 0x5a5a5a5a);
}

static void pools(void)
{
	struct { int allocation, handles, location, id; char rest[72]; } properties = {1, 0, 1, 0, {0}};
	size_t before = available();
	unsigned long long used;
	handle pool, other, stream;
	ptr a, b;

	EXPECT(cuStreamCreate(&stream, 1), OK);
	EXPECT(cuDeviceGetDefaultMemPool(&pool, 0), OK);
	EXPECT(cuMemPoolCreate(&other, &properties), OK);
	EXPECT(cuMemAllocAsync(&a, 4096, stream), OK);
	EXPECT(cuMemAllocFromPoolAsync(&b, 8192, other, stream), OK);
	EXPECT(cuMemPoolGetAttribute(pool, 7, &used), OK);
	EXPECT(used, 4096);
	EXPECT(cuMemPoolDestroy(pool), INVALID_VALUE);
	EXPECT(cuMemPoolDestroy(other), OK);
	EXPECT(cuMemAllocFromPoolAsync(&b, 8192, other, stream), INVALID_VALUE);
	EXPECT(before - available(), 4096 + 8192);
	EXPECT(cuMemFreeAsync(a, stream), OK);
	EXPECT(cuMemFreeAsync(b, stream), OK);
	EXPECT(available(), before);
	EXPECT(cuStreamDestroy_v2(stream), OK);
}

static void streams(void)
{
	handle stream, start, end, untimed;
	float elapsed = -1;

	EXPECT(cuStreamCreate(&stream, 0), OK);
	EXPECT(cuEventCreate(&start, 0), OK);
	EXPECT(cuEventCreate(&end, 0), OK);
	EXPECT(cuEventCreate(&untimed, 2), OK);
	EXPECT(cuEventElapsedTime(&elapsed, start, end), INVALID_HANDLE);
	EXPECT(cuEventRecord(start, stream), OK);
	EXPECT(cuEventRecord(end, NULL), OK);
	EXPECT(cuEventRecord(untimed, stream), OK);
	EXPECT(cuEventElapsedTime(&elapsed, start, end), OK);
	EXPECT(elapsed >= 0, 1);
	EXPECT(cuEventElapsedTime(&elapsed, start, untimed), INVALID_HANDLE);
	EXPECT(cuStreamWaitEvent(stream, end, 0), OK);
	EXPECT(cuStreamQuery(stream), OK);
	EXPECT(cuEventQuery(end), OK);
	EXPECT(cuEventDestroy_v2(end), OK);
	EXPECT(cuEventQuery(end), INVALID_HANDLE);
	EXPECT(cuStreamDestroy_v2(stream), OK);
	EXPECT(cuStreamSynchronize(stream), INVALID_HANDLE);
}

static const char ptx[] =
	"// .entry not_this_one\n.version 8.0\n.target sm_75\n.address_size 64\n"
	"/* .entry nor_this */ .visible .entry add(\n.param .u64 p) { ret; }\n.func helper { ret; }\n";

static void modules(void)
{
	handle module, function, again;
	int value;

	EXPECT(cuModuleLoadData(&module, "garbage"), INVALID_IMAGE);
	EXPECT(cuModuleLoadData(&module, ""), INVALID_IMAGE);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&function, module, "not_this_one"), NOT_FOUND);
	EXPECT(cuModuleGetFunction(&function, module, "nor_this"), NOT_FOUND);
	EXPECT(cuModuleGetFunction(&function, module, "helper"), NOT_FOUND);
	EXPECT(cuModuleGetFunction(&function, module, "add"), OK);
	EXPECT(cuModuleGetFunction(&again, module, "add"), OK);
	EXPECT(function == again, 1);
	EXPECT(cuFuncGetAttribute(&value, 0, function), OK);
	EXPECT(value, 1024);
	EXPECT(cuFuncSetAttribute(function, 8, 65536), OK);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), OK);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 1024, 2, 1, 0, NULL, NULL, NULL), INVALID_VALUE);
	EXPECT(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), INVALID_VALUE);
	EXPECT(cuModuleUnload(module), OK);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), INVALID_HANDLE);
	EXPECT(cuModuleUnload(module), INVALID_HANDLE);
}

static void errors(void)
{
	const char *text = NULL;
	const void *table = "";

	EXPECT(cuGetErrorName(2, &text), OK);
	EXPECT(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"), 0);
	EXPECT(cuGetErrorString(2, &text), OK);
	EXPECT(strcmp(text, "out of memory"), 0);
	EXPECT(cuGetErrorName(12345, &text), INVALID_VALUE);
	EXPECT(cuGetExportTable(&table, "0123456789abcdef"), NOT_FOUND);
}

static void what_dies_with_a_context(void)
{
	handle context, module;
	size_t before = available();
	ptr pointer;

	EXPECT(cuCtxCreate_v2(&context, 0, 0), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 1 << 20), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuCtxDestroy_v2(context), OK);
	EXPECT(available(), before);
	EXPECT(cuModuleUnload(module), INVALID_HANDLE);
	EXPECT(cuMemAlloc_v2(&pointer, 1 << 20), OK);
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	EXPECT(cuMemFree_v2(pointer), INVALID_VALUE);
}

int main(void)
{
	before_init();
	devices();
	contexts();
	memory();
	large();
	first_versions();
	pools();
	streams();
	modules();
	errors();
	what_dies_with_a_context();
	return failures;
}

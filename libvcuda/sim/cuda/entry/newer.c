/*
 * Calls that CUDA 12.5 to 13 changed or added: a further argument, or a named context instead of the current one.
 * They are newer than the driver version that is simulated by default. A program finds them by dlsym, or by
 * cuGetProcAddress if the driver is built as a newer version.
 */
#include "cuda/work/submit.h"

struct creation {
	void *affinities;
	int count;
	void *graphics; /* sharing the card with a graphics interface */
};

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetDevResource(CUcontext context, void *resource, int type);
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuStreamGetGreenCtx(CUstream stream, struct sim_green **green);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
			    size_t *indices, size_t attribute_count, size_t *failed, CUstream stream);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
			    size_t memory_offset, size_t size, unsigned long long flags);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer, size_t size,
			     unsigned long long flags);

SIM_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, const struct creation *creation, unsigned flags, CUdevice device)
{
	if (creation && creation->graphics)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuCtxCreate_v3(context, creation ? creation->affinities : NULL, creation ? creation->count : 0, flags,
			      device);
}

/* Calls with this context as the current one; `context` NULL: with the one that is current already. */
static CUresult with(CUcontext context, CUresult (*call)(void *), void *argument)
{
	CUcontext popped;

	TRY(context ? cuCtxPushCurrent_v2(context) : CUDA_SUCCESS);
	CUresult result = call(argument);
	if (context)
		cuCtxPopCurrent_v2(&popped);
	return result;
}

static CUresult get_device(void *device)
{
	return cuCtxGetDevice(device);
}

static CUresult synchronize(void *nothing)
{
	(void)nothing;
	return cuCtxSynchronize();
}

SIM_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	return with(context, get_device, device);
}

SIM_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
	return with(context, synchronize, NULL);
}

SIM_EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, struct sim_green **green)
{
	TRY(context && green ? cuStreamGetGreenCtx(stream, green) : CUDA_ERROR_INVALID_VALUE);
	return cuStreamGetCtx(stream, context);
}

/* The argument that selects how to synchronize makes no difference here. */
SIM_EXPORT CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *argument, unsigned synchronization)
{
	return synchronization <= 1 ? cuLaunchHostFunc(stream, function, argument) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
					  void *attributes, size_t *indices, size_t attribute_count, CUstream stream)
{
	return cuMemcpyBatchAsync(to, from, sizes, count, attributes, indices, attribute_count, NULL, stream);
}

SIM_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
					  CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
					  unsigned long long flags)
{
	TRY(sim_device(device));
	return cuMulticastBindMem(handle, offset, memory, memory_offset, size, flags);
}

SIM_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
					   CUdeviceptr pointer, size_t size, unsigned long long flags)
{
	TRY(sim_device(device));
	return cuMulticastBindAddr(handle, offset, pointer, size, flags);
}

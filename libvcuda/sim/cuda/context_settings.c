/*
 * Settings of contexts and devices that programs may set and query but that have no effect on a card that computes
 * nothing: cache configurations, the profiler, flags, peer attributes. Settings with an effect are in cuda/context.c.
 */
#include <string.h>

#include "cuda/cuda_sim.h"

static CUresult get_zero(int *value)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	return CUDA_SUCCESS;
}

static CUresult set_up_to(int value, int limit)
{
	struct sim_context *context;
	CUresult result = sim_context_current(&context);

	return result == CUDA_SUCCESS && (value < 0 || value > limit) ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
	return get_zero(config);
}

SIM_EXPORT CUresult cuCtxSetCacheConfig(int config)
{
	return set_up_to(config, 3);
}

SIM_EXPORT CUresult cuCtxGetSharedMemConfig(int *config)
{
	return get_zero(config);
}

SIM_EXPORT CUresult cuCtxSetSharedMemConfig(int config)
{
	return set_up_to(config, 2);
}

SIM_EXPORT CUresult cuCtxResetPersistingL2Cache(void)
{
	return set_up_to(0, 0);
}

SIM_EXPORT CUresult cuProfilerStart(void)
{
	return set_up_to(0, 0);
}

SIM_EXPORT CUresult cuProfilerStop(void)
{
	return set_up_to(0, 0);
}

SIM_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	struct sim_context *current;
	CUresult result = sim_context_current(&current);

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (context)
		result = sim_init_ready();
	if (result == CUDA_SUCCESS)
		*id = (unsigned long long)(uintptr_t)(context ? context : current);
	return result;
}

SIM_EXPORT CUresult cuCtxSetFlags(unsigned flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (flags & ~CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	context->flags = flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device)
{
	(void)type;
	TRY(sim_device(device));
	if (!supported)
		return CUDA_ERROR_INVALID_VALUE;
	*supported = 0;
	return CUDA_SUCCESS;
}

/* rank, access, atomics, arrays: all or none, depending on NVLink */
SIM_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
	TRY(sim_device(from));
	TRY(sim_device(to));
	if (!value || attribute < 1 || attribute > 4 || from == to)
		return CUDA_ERROR_INVALID_VALUE;
	bool linked = sim_state_linked(sim_driver.devices[from].card, sim_driver.devices[to].card);
	*value = attribute == 1 ? 0 : linked;
	return CUDA_SUCCESS;
}

struct device_properties { /* CUdevprop */
	int threads_per_block, block[3], grid[3], shared, constant, warp, pitch, registers, clock, alignment;
};

SIM_EXPORT CUresult cuDeviceGetProperties(struct device_properties *out, CUdevice device)
{
	TRY(sim_device(device));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct device_properties){
		1024, {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 49152, 65536, 32, 0x7fffffff, 65536,
		(int)sim_device_card(device)->clock_mhz * 1000, 512,
	};
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context);

/* The interface before primary contexts: each attach needs a detach, and the last detach destroys the context. */
SIM_EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	context->attached++;
	pthread_mutex_unlock(&sim_driver.lock);
	*out = context;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDetach(CUcontext context)
{
	struct sim_context *current;
	CUresult result = sim_context_current(&current);

	if (result != CUDA_SUCCESS || current != context)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : result;
	pthread_mutex_lock(&sim_driver.lock);
	bool is_last = context->attached == 0;
	context->attached -= !is_last;
	pthread_mutex_unlock(&sim_driver.lock);
	return is_last ? cuCtxDestroy_v2(context) : CUDA_SUCCESS;
}

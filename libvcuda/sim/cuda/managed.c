/*
 * Advice and prefetches for managed memory, which are checked and have no effect because nothing migrates, and the
 * calls that return several pointer attributes. Single pointer attributes are in cuda/memory.c.
 */
#include <string.h>

#include "cuda/work.h"

static CUresult check_managed(CUdeviceptr pointer, size_t bytes)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, bytes);
	bool managed = allocation && allocation->memory == SIM_MANAGED_MEMORY;
	return sim_object_unlock(managed && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	TRY(check_managed(pointer, bytes));
	return sim_queue_submit(stream, &work, false);
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
	(void)device;
	return prefetch(pointer, bytes, stream);
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                                          CUstream stream)
{
	(void)location;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, bytes, stream);
}

CUresult cuPointerGetAttribute(void *, CUpointer_attribute, CUdeviceptr);

static size_t attribute_bytes(CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return 8;
	case CU_POINTER_ATTRIBUTE_MAPPED: return 1;
	default: return 4;
	}
}

/* Unlike the query of one attribute, this call accepts any pointer and returns zeros for values that do not exist. */
SIM_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr pointer)
{
	TRY(sim_init_ready());
	if (!count || !attributes || !out)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (!out[i])
			return CUDA_ERROR_INVALID_VALUE;
		if (cuPointerGetAttribute(out[i], attributes[i], pointer) != CUDA_SUCCESS)
			memset(out[i], attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? 0xff : 0, attribute_bytes(attributes[i]));
	}
	return CUDA_SUCCESS;
}

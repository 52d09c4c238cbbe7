/*
 * The driver calls that allocate and free memory, register host memory, and return information about memory and
 * pointers. Mapping and charging an allocation are in cuda/memory/allocation.c; stream-ordered calls are in
 * cuda/memory/pool.c.
 */
#include <string.h>

#include "cuda/memory/physical.h"
#include "cuda/memory/pool.h"

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	struct sim_context *context;
	uint64_t used;

	TRY(sim_context_current(&context));
	REJECT(!available || !total);
	const struct sim_card *card = sim_device_card(context->device);
	TRY(sim_init_result(sim_ledger_used(sim_driver.devices[context->device].card, &used)));
	*total = card->memory - card->reserved;
	*available = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

/* Shared by the calls below: checks for a current context and a place for the pointer, then allocates. */
static CUresult allocate_memory(CUdeviceptr *pointer, size_t size, enum sim_memory memory, unsigned flags)
{
	struct sim_context *context;
	struct sim_allocation *allocation;

	TRY(sim_context_current(&context));
	REJECT(!pointer);
	TRY(sim_allocation_new(context, NULL, memory, size, &allocation));
	allocation->flags = flags;
	*pointer = allocation->base;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	return allocate_memory(pointer, size, SIM_DEVICE_MEMORY, 0);
}

SIM_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
				       unsigned element)
{
	size_t row = (width + 511) & ~(size_t)511, size;

	REJECT(!pitch || (element != 4 && element != 8 && element != 16) || row < width ||
	       __builtin_mul_overflow(row, height, &size));

	TRY(allocate_memory(pointer, size, SIM_DEVICE_MEMORY, 0));
	*pitch = row;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
	REJECT(flags != 1 && flags != 2); /* attach: global or host */
	return allocate_memory(pointer, size, SIM_MANAGED_MEMORY, flags);
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	TRY(sim_init_ready());
	return pointer ? sim_allocation_free_pointer(pointer, SIM_FREE_DEVICE) : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
	CUdeviceptr address;

	REJECT(!pointer || flags > 7);

	TRY(allocate_memory(&address, size, SIM_HOST_MEMORY, flags));
	*pointer = (void *)(uintptr_t)address;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
	return cuMemHostAlloc(pointer, size, 0);
}

SIM_EXPORT CUresult cuMemFreeHost(void *pointer)
{
	TRY(sim_init_ready());
	return pointer ? sim_allocation_free_pointer((CUdeviceptr)(uintptr_t)pointer, SIM_FREE_HOST) : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!pointer || size == 0);
	return sim_allocation_register(context, pointer, size, flags);
}

/* Locks and finds the allocation of the address. On CUDA_SUCCESS the caller unlocks. */
static CUresult lock_allocation(CUdeviceptr pointer, struct sim_allocation **allocation)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	*allocation = sim_allocation_at(pointer, 0);
	if (*allocation)
		return CUDA_SUCCESS;
	return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult cuMemHostUnregister(void *pointer)
{
	struct sim_allocation *allocation;
	CUresult result = lock_allocation((CUdeviceptr)(uintptr_t)pointer, &allocation);

	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : result;
	if (allocation->memory == SIM_REGISTERED_MEMORY && allocation->base == (CUdeviceptr)(uintptr_t)pointer &&
	    !allocation->is_leaving)
		sim_allocation_free(allocation);
	else
		result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	return sim_object_unlock(result);
}

static bool is_host(const struct sim_allocation *allocation)
{
	return allocation->memory == SIM_HOST_MEMORY || allocation->memory == SIM_REGISTERED_MEMORY;
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags)
{
	struct sim_allocation *allocation;

	REJECT(!device || flags);
	CUresult result = lock_allocation((CUdeviceptr)(uintptr_t)pointer, &allocation);
	if (result != CUDA_SUCCESS)
		return result;
	if (is_host(allocation))
		*device = (CUdeviceptr)(uintptr_t)pointer; /* unified addressing */
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
	struct sim_allocation *allocation;

	REJECT(!flags);
	TRY(lock_allocation((CUdeviceptr)(uintptr_t)pointer, &allocation));
	*flags = allocation->flags;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
	struct sim_allocation *allocation;
	CUresult result = lock_allocation(pointer, &allocation);

	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_NOT_FOUND : result;
	if (base)
		*base = allocation->base;
	if (size)
		*size = allocation->size;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* As documented, the attribute determines the type of the out parameter. */
static CUresult pointer_attribute(const struct sim_allocation *allocation, CUpointer_attribute attribute,
				  CUdeviceptr pointer, void *out)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = allocation->context; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)out = is_host(allocation) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = pointer; break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		REJECT(!is_host(allocation) && allocation->memory != SIM_MANAGED_MEMORY);
		*(void **)out = (void *)(uintptr_t)pointer;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)out = 0; break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = allocation->id; break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = allocation->memory == SIM_MANAGED_MEMORY; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = sim_device_ordinal(allocation->card); break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = allocation->base; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = allocation->size; break;
	case CU_POINTER_ATTRIBUTE_MAPPED: *(char *)out = 1; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)out = allocation->memory == SIM_DEVICE_MEMORY && allocation->context;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)out =
			allocation->pool ? (unsigned long long)allocation->pool->handle_types
			: allocation->physical
				? (unsigned long long)allocation->physical->properties.requestedHandleTypes
				: 0;
		break;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(unsigned *)out = 0; break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)out = allocation->physical ? allocation->flags : 3; /* reading and writing */
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)out = allocation->pool; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)out = allocation->mapped; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)out = allocation->base; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)out = allocation->id; break;
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer)
{
	struct sim_allocation *allocation;

	REJECT(!out);
	TRY(lock_allocation(pointer, &allocation));
	return sim_object_unlock(pointer_attribute(allocation, attribute, pointer, out));
}

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
SIM_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out,
					   CUdeviceptr pointer)
{
	TRY(sim_init_ready());
	REJECT(!count || !attributes || !out);
	for (unsigned i = 0; i < count; i++) {
		REJECT(!out[i]);
		if (cuPointerGetAttribute(out[i], attributes[i], pointer) != CUDA_SUCCESS)
			memset(out[i], attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? 0xff : 0,
			       attribute_bytes(attributes[i]));
	}
	return CUDA_SUCCESS;
}

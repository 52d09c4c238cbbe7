/*
 * The wrappers of libcuda.so.1 for memory behind an address of several cards: multicast objects (CUDA 12.1) and logical
 * endpoints (CUDA 13.3). driver/cuda_table.h lists all wrappers.
 *
 * The objects cost nothing. Memory that is bound to one lives, and stays charged, until it is unbound or the object
 * goes, even if its last handle is released before. An object that another process made is not in the table, so what
 * is bound to it stays charged until it is unbound.
 */
#include <stdlib.h>

#include "driver/cuda_table.h"
#include "memory/allocations.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

/* False within the driver, which may make one of these calls by another of them. */
static bool books(void)
{
	return !guard_this_thread.inside && limits_state() == LIMITS_PRESENT;
}

/* Recorded without a charge, so that its references are counted. Without memory for that, bindings last longer. */
EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const void *properties)
{
	CUresult result = GUARDED(REAL(cuMulticastCreate, handle, properties));
	struct allocation *entry = result == CUDA_SUCCESS && books() ? calloc(1, sizeof(*entry)) : NULL;

	if (entry) {
		*entry = (struct allocation){
			.kind = ALLOCATED_HANDLE,
			.key = *handle,
			.device = NO_DEVICE,
			.card = USAGE_NO_CARD,
		};
		free(allocations_put(entry));
	}
	return result;
}

/* The handle of the memory behind an address, which lives as long as the caller may use the address. 0: none. */
static CUmemGenericAllocationHandle handle_behind(CUdeviceptr pointer)
{
	CUmemGenericAllocationHandle handle = 0;

	if (books() && GUARDED(REAL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)pointer)) == CUDA_SUCCESS)
		(void)GUARDED(REAL(cuMemRelease, handle));
	return handle;
}

/* Adds the reference before the driver binds the memory, since another thread may release the handle meanwhile. */
#define BIND(binder_kind, binder_key, offset, memory, size, function, ...) \
	bool room = true, is_locked = books() && physical_lock_shared(); \
	struct binding *binding = books() ? physical_begin_binding(memory, &room) : NULL; \
	CUresult result = room ? GUARDED(REAL(function, __VA_ARGS__)) : CUDA_ERROR_OUT_OF_MEMORY; \
	result = physical_end_binding(binding, result, physical_binder(binder_kind, binder_key), offset, size); \
	physical_unlock_shared(is_locked); \
	return result

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
				   CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
				   unsigned long long flags)
{
	BIND(MULTICAST_OBJECT, object, offset, memory, size, cuMulticastBindMem, object, offset, memory, memory_offset,
	     size, flags);
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
				      CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
				      unsigned long long flags)
{
	BIND(MULTICAST_OBJECT, object, offset, memory, size, cuMulticastBindMem_v2, object, device, offset, memory,
	     memory_offset, size, flags);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr pointer,
				    size_t size, unsigned long long flags)
{
	BIND(MULTICAST_OBJECT, object, offset, handle_behind(pointer), size, cuMulticastBindAddr, object, offset,
	     pointer, size, flags);
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
				       CUdeviceptr pointer, size_t size, unsigned long long flags)
{
	BIND(MULTICAST_OBJECT, object, offset, handle_behind(pointer), size, cuMulticastBindAddr_v2, object, device,
	     offset, pointer, size, flags);
}

#define UNBIND(binder_kind, binder_key, device, offset, size, function) \
	const struct binder from = physical_binder(binder_kind, binder_key); \
	uint64_t before = physical_next_binding(); \
	CUresult result = GUARDED(REAL(function, binder_key, device, offset, size)); \
	if (result == CUDA_SUCCESS && books()) \
		physical_unbind(from, device, offset, size, before); \
	return result

EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size)
{
	UNBIND(MULTICAST_OBJECT, object, device, offset, size, cuMulticastUnbind);
}

EXPORT CUresult cuLogicalEndpointBindMem(unsigned int endpoint, CUdevice device, uint64_t offset,
					 CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t size,
					 unsigned long long flags)
{
	BIND(LOGICAL_ENDPOINT, endpoint, offset, memory, size, cuLogicalEndpointBindMem, endpoint, device, offset,
	     memory, memory_offset, size, flags);
}

EXPORT CUresult cuLogicalEndpointBindAddr(unsigned int endpoint, CUdevice device, uint64_t offset, void *pointer,
					  uint64_t size, unsigned long long flags)
{
	BIND(LOGICAL_ENDPOINT, endpoint, offset, handle_behind((uintptr_t)pointer), size, cuLogicalEndpointBindAddr,
	     endpoint, device, offset, pointer, size, flags);
}

EXPORT CUresult cuLogicalEndpointUnbind(unsigned int endpoint, CUdevice device, uint64_t offset, uint64_t size)
{
	UNBIND(LOGICAL_ENDPOINT, endpoint, device, offset, size, cuLogicalEndpointUnbind);
}

EXPORT CUresult cuLogicalEndpointDestroy(unsigned int endpoint)
{
	uint64_t before = physical_next_binding();
	CUresult result = GUARDED(REAL(cuLogicalEndpointDestroy, endpoint));

	if (result == CUDA_SUCCESS && books())
		physical_unbind_all(physical_binder(LOGICAL_ENDPOINT, endpoint), before);
	return result;
}

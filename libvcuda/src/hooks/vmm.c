/*
 * The wrappers of libcuda.so.1 for virtual memory management: physical memory and its mappings. driver/cuda_table.h
 * lists all wrappers.
 *
 * Memory of cuMemCreate is charged to the card that the call names. The memory and its charge live while a handle is
 * not released, a range is mapped to the memory, or it is bound to an object of several cards (hooks/multicast.c). A handle imported from another process is not charged, since the
 * exporter is charged already.
 */
#include <stdlib.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "memory/calls.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
			    unsigned long long flags)
{
	struct charge charge;
	bool on_card = properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	CUresult result = charge_begin_on(&charge, on_card ? properties->location.id : NO_DEVICE, size);

	if (result != CUDA_SUCCESS)
		return result;
	charge.kind = ALLOCATED_HANDLE;
	bool is_locked = charge.entry && physical_lock_alone();
	result = REAL(cuMemCreate, handle, size, properties, flags);
	if (charge_has_no_fallback(&charge, result))
		log_once(LOG_ERROR, "the card is full, and managed memory cannot replace memory of cuMemCreate");
	result = charge_end(&charge, result, result == CUDA_SUCCESS ? *handle : 0);
	physical_unlock_alone(is_locked);
	return result;
}

static bool counts(void)
{
	return limits_state() == LIMITS_PRESENT;
}

/* False within the driver, which may make one of these calls by another of them. */
static bool locks(void)
{
	return counts() && !guard_this_thread.inside;
}

/* Before a call that may end the memory's last reference. */
static bool begin_call(void)
{
	bool is_call = locks();

	if (is_call)
		calls_begin();
	return is_call;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	bool known = false, is_call = begin_call(), is_locked = is_call && physical_lock_shared();
	struct allocation *last =
		counts() ? allocations_dereference(ALLOCATED_HANDLE, handle, ANY_SERIAL, &known) : NULL;
	const struct binder object = {MULTICAST_OBJECT, handle, last ? last->serial : 0};
	CUresult result = GUARDED(REAL(cuMemRelease, handle));

	if (result != CUDA_SUCCESS && known && !last)
		(void)allocations_reference(ALLOCATED_HANDLE, handle);
	(void)charge_give_back(last, result);
	physical_unlock_shared(is_locked);
	if (result == CUDA_SUCCESS && last)
		physical_unbind_all(object, UINT64_MAX);
	if (is_call)
		calls_end();
	return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	bool is_locked = locks() && physical_lock_alone();
	CUresult result = GUARDED(REAL(cuMemRetainAllocationHandle, handle, address));

	if (result == CUDA_SUCCESS && counts())
		(void)allocations_reference(ALLOCATED_HANDLE, *handle);
	physical_unlock_alone(is_locked);
	return result;
}

/* Adds a reference before the driver maps the memory, since another thread may release the handle meanwhile. */
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			 unsigned long long flags)
{
	bool is_locked = locks() && physical_lock_shared();
	uint64_t charged = counts() ? allocations_reference(ALLOCATED_HANDLE, handle) : 0; /* the serial */
	struct allocation *range = charged ? calloc(1, sizeof(*range)) : NULL;
	CUresult result = charged && !range ? CUDA_ERROR_OUT_OF_MEMORY
					    : GUARDED(REAL(cuMemMap, pointer, size, offset, handle, flags));

	if (charged && result != CUDA_SUCCESS) {
		physical_drop(handle, charged);
		free(range);
	} else if (charged) {
		*range = (struct allocation){
			.kind = MAPPED_RANGE,
			.key = pointer,
			.size = size,
			.card = USAGE_NO_CARD,
			.target = handle,
			.target_serial = charged,
		};
		free(allocations_put(range));
	}
	physical_unlock_shared(is_locked);
	return result;
}

/* One call may end several adjacent mappings. Mappings of memory that was not charged are not in the table. */
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	struct allocation *range, *taken = NULL;
	bool is_call = begin_call();

	for (CUdeviceptr at = pointer; counts() && at - pointer < size; at += range->size) {
		range = allocations_take(MAPPED_RANGE, at);
		if (!range || !range->size)
			break;
		range->next = taken;
		taken = range;
	}
	CUresult result = GUARDED(REAL(cuMemUnmap, pointer, size));
	bool is_locked = taken && locks() && physical_lock_shared();
	while ((range = taken)) {
		taken = range->next;
		if (result == CUDA_SUCCESS) {
			physical_drop(range->target, range->target_serial);
			free(range);
		} else {
			free(allocations_put(range));
		}
	}
	physical_unlock_shared(is_locked);
	if (is_call)
		calls_end();
	return result;
}

/*
 * The wrappers of libcuda.so.1 by which processes share memory with each other: handles and descriptors of memory, and
 * their import. driver/cuda_table.h lists all wrappers.
 *
 * Memory lives until the last process lets it go, and memory/sharing.h says who is charged so long. Events of other
 * processes take no memory. A pool that is imported gives out none; its pointers are imported one by one.
 */
#include <stdlib.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "memory/calls.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "memory/sharing.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

enum { HANDLE_TYPE_DESCRIPTOR = 1, HANDLE_TYPE_FABRIC = 8, EXTERNAL_DESCRIPTOR = 1 };

/* False within the driver, which may make one of these calls by another of them. */
static bool is_counted(void)
{
	return !guard_this_thread.inside && limits_state() == LIMITS_PRESENT;
}

/* Keeps the entry of imported memory that a process of this container is charged for. */
static CUresult keep_import(enum allocation_kind kind, uint64_t key, CUcontext context, struct share_hold *share)
{
	struct allocation *entry = calloc(1, sizeof(*entry));

	if (!entry) {
		sharing_drop(share);
		return CUDA_SUCCESS;
	}
	*entry = (struct allocation){
		.kind = kind,
		.key = key,
		.context = context,
		.device = NO_DEVICE,
		.card = USAGE_NO_CARD,
		.shares = share,
	};
	(void)charge_give_back(entry, CUDA_ERROR_UNKNOWN); /* nothing was freed, so it stays */
	return CUDA_SUCCESS;
}

/* ---- memory of cuMemCreate ---- */

EXPORT CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type,
					     unsigned long long flags)
{
	bool counts = is_counted(), is_locked = counts && physical_lock_alone();
	CUresult result = GUARDED(REAL(cuMemExportToShareableHandle, shared, handle, type, flags));

	if (result == CUDA_SUCCESS && counts && type == HANDLE_TYPE_DESCRIPTOR)
		sharing_export_descriptor(ALLOCATED_HANDLE, handle, *(const int *)shared);
	else if (result == CUDA_SUCCESS && counts && type == HANDLE_TYPE_FABRIC)
		sharing_export_bytes(ALLOCATED_HANDLE, handle, shared);
	physical_unlock_alone(is_locked);
	return result;
}

static CUdevice device_of_handle(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp properties[2]; /* the second is room for a longer structure of a newer driver */

	if (GUARDED(REAL(cuMemGetAllocationPropertiesFromHandle, properties, handle)) != CUDA_SUCCESS ||
	    properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return NO_DEVICE;
	return properties->location.id;
}

/* Charges the importer. The driver does not say how large the memory is: without the exporter's word it counts nothing. */
static CUresult charge_handle(CUmemGenericAllocationHandle handle, uint64_t size)
{
	struct charge charge;
	CUresult result = charge_begin_on(&charge, device_of_handle(handle), size);

	if (result != CUDA_SUCCESS) {
		(void)GUARDED(REAL(cuMemRelease, handle));
		return result;
	}
	charge.kind = ALLOCATED_HANDLE;
	charge.is_unlisted = true; /* NVML lists it with its exporter, if with anybody */
	return charge_end(&charge, result, handle);
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	struct share_hold *share = NULL;
	uint64_t size = 0;
	bool counts = is_counted();

	if (counts && type == HANDLE_TYPE_DESCRIPTOR)
		share = sharing_import_descriptor((int)(intptr_t)shared, &size);
	else if (counts && type == HANDLE_TYPE_FABRIC && shared)
		share = sharing_import_bytes(shared);
	bool is_locked = counts && physical_lock_alone();
	CUresult result = GUARDED(REAL(cuMemImportFromShareableHandle, handle, shared, type));
	if (result != CUDA_SUCCESS || !counts || allocations_reference(ALLOCATED_HANDLE, *handle))
		sharing_drop(share);
	else
		result = share ? keep_import(ALLOCATED_HANDLE, *handle, NULL, share) : charge_handle(*handle, size);
	physical_unlock_alone(is_locked);
	return result;
}

/* ---- memory by its address ---- */

static bool base_of(CUdeviceptr pointer, CUdeviceptr *base, size_t *size)
{
	return GUARDED(REAL(cuMemGetAddressRange_v2, base, size, pointer)) == CUDA_SUCCESS;
}

/*
 * Managed memory cannot be shared in this way. The driver's error alone would not explain why this memory is managed.
 */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	struct allocation entry;
	CUdeviceptr base;
	size_t size;

	if (limits_state() == LIMITS_PRESENT && allocations_find(ALLOCATED_POINTER, pointer, &entry) && entry.managed) {
		log_once(LOG_ERROR, "cuIpcGetMemHandle: the card was full when this memory was allocated, so it is "
				    "managed memory, which cannot be shared between processes");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	CUresult result = GUARDED(REAL(cuIpcGetMemHandle, handle, pointer));
	if (result == CUDA_SUCCESS && is_counted() && base_of(pointer, &base, &size))
		sharing_export_bytes(ALLOCATED_POINTER, base, handle);
	return result;
}

/*
 * The driver gives out the same address if the memory is open already, so the caller has the lock: the entry must be there
 * before another thread opens the memory. `share` is of before the driver's call: an exporter that frees the memory
 * meanwhile must not leave it without anybody who is charged.
 */
static CUresult count_opened(CUresult result, const CUdeviceptr *pointer, struct share_hold *share,
			     __typeof__(cuIpcCloseMemHandle) *close_memory)
{
	struct charge charge;
	CUcontext context;
	CUdeviceptr base;
	size_t size;

	if (result != CUDA_SUCCESS || !is_counted() || allocations_reference(ALLOCATED_POINTER, *pointer)) {
		sharing_drop(share);
		return result;
	}
	if (share && GUARDED(REAL(cuCtxGetCurrent, &context)) == CUDA_SUCCESS)
		return keep_import(ALLOCATED_POINTER, *pointer, context, share);
	sharing_drop(share);
	if (!base_of(*pointer, &base, &size))
		return result;
	result = charge_begin(&charge, size);
	charge.is_unlisted = true; /* as in charge_handle */
	if (result == CUDA_SUCCESS)
		return charge_end(&charge, result, *pointer);
	(void)GUARDED(close_memory(*pointer));
	return result;
}

#define OPENED(pointer, bytes, close_memory, function, ...) \
	struct share_hold *share = share_of(bytes); \
	bool is_locked = is_counted() && physical_lock_alone(); \
	CUresult result = count_opened(GUARDED(REAL(function, __VA_ARGS__)), pointer, share, close_memory); \
	physical_unlock_alone(is_locked); \
	return result

static struct share_hold *share_of(const void *bytes)
{
	return bytes && is_counted() ? sharing_import_bytes(bytes) : NULL;
}

static CUresult close_opened(CUdeviceptr pointer)
{
	return REAL(cuIpcCloseMemHandle, pointer);
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	OPENED(pointer, &handle, close_opened, cuIpcOpenMemHandle, pointer, handle, flags);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	OPENED(pointer, &handle, close_opened, cuIpcOpenMemHandle_v2, pointer, handle, flags);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	bool known = false, counts = is_counted();

	if (counts)
		calls_begin();
	bool is_locked = counts && physical_lock_shared();
	struct allocation *last =
		counts ? allocations_dereference(ALLOCATED_POINTER, pointer, ANY_SERIAL, &known) : NULL;
	CUresult result = GUARDED(REAL(cuIpcCloseMemHandle, pointer));

	if (result != CUDA_SUCCESS && known && !last)
		(void)allocations_reference(ALLOCATED_POINTER, pointer);
	result = charge_give_back(last, result);
	physical_unlock_shared(is_locked);
	if (counts)
		calls_end();
	return result;
}

/* A descriptor (dma-buf) of the memory behind addresses, be it of cuMemAlloc or mapped. */
EXPORT CUresult cuMemGetHandleForAddressRange(void *shared, CUdeviceptr pointer, size_t size, int type,
					      unsigned long long flags)
{
	bool counts = is_counted() && type == HANDLE_TYPE_DESCRIPTOR, is_locked = counts && physical_lock_alone();
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base;
	size_t whole;

	/* Before the export, since another thread may unmap the memory. */
	bool is_mapped = counts && GUARDED(REAL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)pointer)) ==
					   CUDA_SUCCESS;
	CUresult result = GUARDED(REAL(cuMemGetHandleForAddressRange, shared, pointer, size, type, flags));
	if (result == CUDA_SUCCESS && is_mapped)
		sharing_export_descriptor(ALLOCATED_HANDLE, handle, *(const int *)shared);
	else if (result == CUDA_SUCCESS && counts && base_of(pointer, &base, &whole))
		sharing_export_descriptor(ALLOCATED_POINTER, base, *(const int *)shared);
	if (is_mapped)
		(void)GUARDED(REAL(cuMemRelease, handle));
	physical_unlock_alone(is_locked);
	return result;
}

/* ---- memory of pools: the pool is charged, so the exported pointer's entry has a share and no charge ---- */

EXPORT CUresult cuMemPoolExportPointer(CUipcMemHandle *data, CUdeviceptr pointer)
{
	CUresult result = GUARDED(REAL(cuMemPoolExportPointer, data, pointer));
	struct device_limits card;
	struct allocation entry;
	CUdeviceptr base;
	CUdevice device;
	size_t size;

	if (result != CUDA_SUCCESS || !is_counted() || !base_of(pointer, &base, &size))
		return result;
	if (allocations_find(ALLOCATED_POINTER, base, &entry)) {
		sharing_export_bytes(ALLOCATED_POINTER, base, data);
		return result;
	}
	if (GUARDED(REAL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base)) == CUDA_SUCCESS &&
	    device_limits_of(device, &card) && usage_card(card.uuid) != USAGE_NO_CARD)
		sharing_export_pointer(base, usage_card(card.uuid), size, data);
	return result;
}

static CUresult free_imported(CUdeviceptr pointer)
{
	return REAL(cuMemFree_v2, pointer);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUipcMemHandle *data)
{
	OPENED(pointer, data, free_imported, cuMemPoolImportPointer, pointer, pool, data);
}

/* ---- external memory, most of it of other interfaces ---- */

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from)
{
	bool is_descriptor = from && from->type == EXTERNAL_DESCRIPTOR;
	uint64_t size;
	struct share_hold *share =
		is_counted() && is_descriptor ? sharing_import_descriptor(from->handle.fd, &size) : NULL;
	struct charge charge = {.entered = false};
	CUresult result = share || !from ? CUDA_SUCCESS : charge_begin(&charge, from->size);

	if (result != CUDA_SUCCESS)
		return result;
	charge.kind = EXTERNAL_MEMORY;
	result = charge.entered ? REAL(cuImportExternalMemory, memory, from)
				: GUARDED(REAL(cuImportExternalMemory, memory, from));
	uint64_t key = result == CUDA_SUCCESS ? (uintptr_t)*memory : 0;
	if (charge.entered)
		return charge_end(&charge, result, key);
	if (result == CUDA_SUCCESS && share) {
		CUcontext context = NULL; /* with which it goes */
		(void)GUARDED(REAL(cuCtxGetCurrent, &context));
		return keep_import(EXTERNAL_MEMORY, key, context, share);
	}
	sharing_drop(share);
	return result;
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	struct allocation *entry = charge_take(EXTERNAL_MEMORY, (uintptr_t)memory);

	return charge_give_back(entry, GUARDED(REAL(cuDestroyExternalMemory, memory)));
}

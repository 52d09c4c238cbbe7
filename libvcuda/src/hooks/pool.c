/*
 * The wrappers of libcuda.so.1 for stream-ordered memory, its pools, and synchronization. driver/cuda_table.h lists all
 * wrappers.
 *
 * memory/pools.h charges what pools reserve. Where the driver does not report that, each allocation is charged by
 * itself (memory/charge.h). Synchronization is here because it lets pools give memory back.
 */
#include "compute/launch.h"
#include "driver/cuda_table.h"
#include "memory/calls.h"
#include "memory/charge.h"
#include "memory/context_overhead.h"
#include "memory/managed_free.h"
#include "memory/pools.h"
#include "memory/sharing.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

struct stream_ordered {
	struct pool_charge pooled; /* the charge for the pool's reserve; .pool NULL: the driver does not report it */
	struct charge single;      /* used if .pool is NULL: the charge for the allocation itself */
	bool hosts;                /* the charge is `single` and the allocation is the host's memory */
	bool entered;              /* the guard is held for `pooled` */
};

/* The device whose pool serves the stream, which may be another than the current one. */
static bool device_of_stream(CUstream stream, CUdevice *device)
{
	CUcontext context, current, popped;

	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD ||
	    REAL(cuStreamGetCtx, stream, &context) != CUDA_SUCCESS || REAL(cuCtxGetCurrent, &current) != CUDA_SUCCESS ||
	    context == current || REAL(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
		return device_limits_current_device(device);
	bool is_known = device_limits_current_device(device);
	(void)REAL(cuCtxPopCurrent_v2, &popped);
	return is_known;
}

static struct pool *pool_of_stream(CUstream stream)
{
	CUmemoryPool handle = NULL;
	CUdevice device;

	if (!device_of_stream(stream, &device) || REAL(cuDeviceGetMemPool, &handle, device) != CUDA_SUCCESS)
		return NULL;
	return pools_of_handle(handle, device);
}

static struct pool *pool_of(CUmemoryPool handle, CUstream stream)
{
	return handle ? pools_of_handle(handle, pools_device(handle)) : pool_of_stream(stream);
}

/* Even if no graph ran any more: it may have ended since the first try. */
static bool begin_after_graphs(struct stream_ordered *call, struct pool *pool, size_t size)
{
	pools_wait_for_graphs(pools_card_of(pool));
	return pools_begin(&call->pooled, pool, size);
}

/* A charge for the allocation itself. */
static CUresult begin_single(struct stream_ordered *call, CUmemoryPool handle, size_t size)
{
	CUdevice preferred = handle ? pools_preferred(handle) : NO_DEVICE;

	call->hosts = handle && pools_is_hosts(handle);
	CUresult result = call->hosts || preferred != NO_DEVICE ? charge_begin_on(&call->single, preferred, size)
								: charge_begin_stream_ordered(&call->single, size);
	call->single.is_unlisted = handle && pools_is_managed(handle);
	return result;
}

/* `handle` NULL: the current pool of the stream's device. */
static CUresult begin_stream_ordered(struct stream_ordered *call, CUmemoryPool handle, size_t size, CUstream stream)
{
	struct pool *pool = NULL;

	*call = (struct stream_ordered){.entered = limits_state() == LIMITS_PRESENT && guard_enter()};
	if (call->entered) {
		pool = pool_of(handle, stream);
		if (!pool) {
			guard_leave();
			call->entered = false;
		}
	}
	if (!pool)
		return begin_single(call, handle, size);
	context_overhead_follow_rarely(pools_device_of(pool));
	managed_free_complete();
	if (pools_begin(&call->pooled, pool, size) || begin_after_graphs(call, pool, size) ||
	    (context_overhead_fell(pools_device_of(pool)) && pools_begin(&call->pooled, pool, size)) ||
	    (sharing_reclaim() && pools_begin(&call->pooled, pool, size)) ||
	    (managed_free_reclaim() && pools_begin(&call->pooled, pool, size)))
		return CUDA_SUCCESS;
	usage_refused(pools_card_of(pool));
	guard_leave();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Whether managed memory may replace memory that the full card does not give. It may not while the stream is captured.
 */
static bool may_fall_back(CUdevice device, CUstream stream)
{
	struct device_limits card;
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (device == NO_DEVICE || !device_limits_of(device, &card) || !card.oversubscribe)
		return false;
	CUresult result = REAL(cuStreamIsCapturing, stream, &status);
	return (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED) &&
	       status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The managed-memory fallback for a full card: ends the call's booking and, if possible, allocates managed memory. */
static CUresult fall_back_to_managed(struct stream_ordered *call, CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct pool *pool = call->pooled.pool;
	CUdevice device = pool ? pools_device_of(pool) : call->single.device;
	bool entered = pool ? call->entered : call->single.entered;

	if (!entered || !may_fall_back(device, stream))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (pool) {
		(void)pools_end(&call->pooled, pool);
		call->pooled.pool = NULL;
		guard_leave();
	} else {
		(void)charge_end(&call->single, CUDA_ERROR_OUT_OF_MEMORY, 0);
	}
	call->single = (struct charge){.entered = false};
	return charge_managed_fallback_for_pool(device, size, pointer);
}

/* The pool that the memory came from. Another thread may have changed the device's current one meanwhile. */
static struct pool *pool_of_pointer(CUdeviceptr pointer, struct pool *expected)
{
	CUmemoryPool handle = NULL;
	CUdevice device;

	if (REAL(cuPointerGetAttribute, &handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer) != CUDA_SUCCESS ||
	    !handle ||
	    REAL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) != CUDA_SUCCESS)
		return expected;
	return pools_of_handle(handle, device);
}

static CUresult end_stream_ordered(struct stream_ordered *call, CUresult result, CUdeviceptr pointer, CUstream stream)
{
	if (!call->pooled.pool)
		return call->hosts ? charge_end(&call->single, result, pointer)
				   : charge_end_stream_ordered(&call->single, result, pointer);
	struct pool *used = result == CUDA_SUCCESS ? pool_of_pointer(pointer, call->pooled.pool) : call->pooled.pool;
	if (!pools_end(&call->pooled, used) && result == CUDA_SUCCESS) {
		if (REAL(cuMemFreeAsync, pointer, stream) != CUDA_SUCCESS)
			(void)REAL(cuMemFree_v2, pointer);
		graph_launches_await(stream); /* a refused call leaves nothing booked */
		pools_reconcile();
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guard_leave();
	return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct stream_ordered call;
	CUresult result = begin_stream_ordered(&call, NULL, size, stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync, pointer, size, stream);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = fall_back_to_managed(&call, pointer, size, stream);
	return end_stream_ordered(&call, result, result == CUDA_SUCCESS ? *pointer : 0, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct stream_ordered call;
	CUresult result = begin_stream_ordered(&call, NULL, size, stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync_ptsz, pointer, size, stream);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = fall_back_to_managed(&call, pointer, size, stream ? stream : CU_STREAM_PER_THREAD);
	return end_stream_ordered(&call, result, result == CUDA_SUCCESS ? *pointer : 0,
				  stream ? stream : CU_STREAM_PER_THREAD);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct stream_ordered call;
	CUresult result = begin_stream_ordered(&call, pool, size, stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync, pointer, size, pool, stream);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = fall_back_to_managed(&call, pointer, size, stream);
	return end_stream_ordered(&call, result, result == CUDA_SUCCESS ? *pointer : 0, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct stream_ordered call;
	CUresult result = begin_stream_ordered(&call, pool, size, stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync_ptsz, pointer, size, pool, stream);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = fall_back_to_managed(&call, pointer, size, stream ? stream : CU_STREAM_PER_THREAD);
	return end_stream_ordered(&call, result, result == CUDA_SUCCESS ? *pointer : 0,
				  stream ? stream : CU_STREAM_PER_THREAD);
}

/* ---- frees, which give back memory at once or at the next synchronization ---- */

static CUresult reconciled(CUresult result)
{
	if (result == CUDA_SUCCESS && guard_enter()) {
		graph_launches_freed();
		pools_reconcile();
		guard_leave();
	}
	return result;
}

static CUresult free_async(struct allocation *entry, CUdeviceptr pointer, CUstream stream, CUresult result)
{
	bool pooled = !entry;

	if (pooled && result == CUDA_SUCCESS) {
		sharing_pointer_freed(pointer);
		pools_freed(stream);
	}
	result = charge_give_back(entry, result);
	return pooled ? reconciled(result) : result;
}

static bool is_managed_fallback(const struct allocation *entry)
{
	return entry && entry->stream_ordered;
}

/* If the memory cannot be freed in the stream's order, waits for the stream's work. */
static CUresult free_managed(struct allocation *entry, CUstream stream)
{
	if (managed_free_after(entry, stream))
		return CUDA_SUCCESS;
	CUresult result = REAL(cuStreamSynchronize, stream);
	if (result == CUDA_SUCCESS)
		result = REAL(cuMemFree_v2, entry->key);
	return charge_give_back(entry, result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	if (is_managed_fallback(entry))
		return GUARDED(free_managed(entry, stream));
	return free_async(entry, pointer, stream, GUARDED(REAL(cuMemFreeAsync, pointer, stream)));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	if (is_managed_fallback(entry))
		return GUARDED(free_managed(entry, stream ? stream : CU_STREAM_PER_THREAD));
	return free_async(entry, pointer, stream ? stream : CU_STREAM_PER_THREAD,
			  GUARDED(REAL(cuMemFreeAsync_ptsz, pointer, stream)));
}

/* Costs a program that synchronizes all the time some loads, unless its pools are still to give memory back. */
static CUresult synchronized(bool frees, CUresult result)
{
	CUdevice device;

	if (guard_enter()) {
		managed_free_complete();
		if (frees)
			pools_reconcile();
		if (context_overhead_is_unaccounted() && device_limits_current_device(&device))
			context_overhead_follow_rarely(device);
		guard_leave();
	}
	return result;
}

#define SYNCHRONIZED(stream, ...) \
	({ \
		bool frees = !guard_this_thread.inside && pools_synchronizing(stream); \
		synchronized(frees, REAL(__VA_ARGS__)); \
	})

/* The accounting of the card's time needs to know which work has ended. */
#define SYNCHRONIZE(stream, meaning, with, ...) \
	bool noted = compute_launch_waiting(stream, meaning); \
	CUresult result = SYNCHRONIZED(with, __VA_ARGS__); \
	if (noted) \
		compute_launch_waited(stream, meaning); \
	return result

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	SYNCHRONIZE(stream, STREAM_LEGACY, stream ? stream : CU_STREAM_LEGACY, cuStreamSynchronize, stream);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	SYNCHRONIZE(stream, STREAM_PER_THREAD, stream ? stream : CU_STREAM_PER_THREAD, cuStreamSynchronize_ptsz,
		    stream);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
	return SYNCHRONIZED(SOME_STREAM, cuEventSynchronize, event);
}

EXPORT CUresult cuCtxSynchronize(void)
{
	SYNCHRONIZE(NULL, STREAMS_ALL, EVERY_STREAM, cuCtxSynchronize);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
	return SYNCHRONIZED(EVERY_STREAM, cuCtxSynchronize_v2, context);
}

/* ---- pools ---- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuMemPoolCreate, pool, properties);

	if (entered && result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT)
		pools_made(*pool, &properties->location, properties->alloc_type);
	if (entered)
		guard_leave();
	return result;
}

/* The program got a pool that it did not create: records where the pool's memory lies. */
static CUresult learned(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location, int type)
{
	if (result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT && guard_enter()) {
		pools_made(*pool, location, type);
		guard_leave();
	}
	return result;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	return learned(GUARDED(REAL(cuMemGetDefaultMemPool, pool, location, type)), pool, location, type);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	return learned(GUARDED(REAL(cuMemGetMemPool, pool, location, type)), pool, location, type);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	bool entered = guard_enter();

	if (!entered)
		return REAL(cuMemPoolDestroy, pool);
	calls_begin();
	bool is_doomed = pools_doom(pool); /* it is destroyed when its memory is freed */
	CUresult result = is_doomed ? CUDA_SUCCESS : REAL(cuMemPoolDestroy, pool);
	if (!is_doomed && result == CUDA_SUCCESS)
		pools_gone(pool);
	calls_end();
	guard_leave();
	return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	return reconciled(GUARDED(REAL(cuMemPoolTrimTo, pool, keep)));
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	return reconciled(GUARDED(REAL(cuMemPoolSetAttribute, pool, attribute, value)));
}

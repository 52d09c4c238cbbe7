/*
 * The wrappers of libcuda.so.1 that give a stream work which takes none of the card's time: functions of the host,
 * waits, and memory that moves between card and host. driver/cuda_table.h lists all wrappers.
 *
 * That work is not accounted, and the wrappers never wait. Each wrapper interrupts the stream's batch, so that the time
 * of the work on the card before and after it is measured without it. Calls that wait for a stream are in hooks/pool.c.
 */
#include "compute/launch.h"
#include "driver/cuda_table.h"

#define INTERRUPT(symbol, meaning, waits, parameters, ...) \
	EXPORT CUresult symbol parameters \
	{ \
		(void)compute_launch_interrupt(stream, meaning, waits, 0); \
		return REAL(symbol, __VA_ARGS__); \
	}

/* A function and its variant for per-thread default streams. */
#define WAITS(symbol, parameters, ...) \
	INTERRUPT(symbol, STREAM_LEGACY, true, parameters, __VA_ARGS__) \
	INTERRUPT(symbol##_ptsz, STREAM_PER_THREAD, true, parameters, __VA_ARGS__)
#define MOVES(symbol, parameters, ...) \
	INTERRUPT(symbol, STREAM_LEGACY, false, parameters, __VA_ARGS__) \
	INTERRUPT(symbol##_ptsz, STREAM_PER_THREAD, false, parameters, __VA_ARGS__)

WAITS(cuLaunchHostFunc, (CUstream stream, void *function, void *data), stream, function, data)
WAITS(cuLaunchHostFunc_v2, (CUstream stream, void *function, void *data, unsigned int mode), stream, function, data,
      mode)
WAITS(cuStreamAddCallback, (CUstream stream, void *callback, void *data, unsigned int flags), stream, callback, data,
      flags)

#define WAITS_32 (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
#define WAITS_64 (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
#define OPERATIONS (CUstream stream, unsigned int count, void *list, unsigned int flags)

WAITS(cuStreamWaitValue32, WAITS_32, stream, address, value, flags)
WAITS(cuStreamWaitValue32_v2, WAITS_32, stream, address, value, flags)
WAITS(cuStreamWaitValue64, WAITS_64, stream, address, value, flags)
WAITS(cuStreamWaitValue64_v2, WAITS_64, stream, address, value, flags)
WAITS(cuStreamBatchMemOp, OPERATIONS, stream, count, list, flags)
WAITS(cuStreamBatchMemOp_v2, OPERATIONS, stream, count, list, flags)
WAITS(cuWaitExternalSemaphoresAsync, (const void *semaphores, const void *params, unsigned int count, CUstream stream),
      semaphores, params, count, stream)

/* What the stream waits for is accounted by itself. */
#define WAIT_EVENT(symbol, meaning) \
	EXPORT CUresult symbol(CUstream stream, CUevent event, unsigned int flags) \
	{ \
		(void)compute_launch_interrupt(stream, meaning, false, 0); \
		compute_launch_waits_for_event(stream, meaning); \
		return REAL(symbol, stream, event, flags); \
	}

WAIT_EVENT(cuStreamWaitEvent, STREAM_LEGACY)
WAIT_EVENT(cuStreamWaitEvent_ptsz, STREAM_PER_THREAD)

/* ---- moves of managed memory, which are like copies over the bus ---- */

#define PREFETCH (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream)
#define PREFETCH_V2 (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream)
#define PREFETCHES \
	(CUdeviceptr * pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *indices, \
	 size_t location_count, unsigned long long flags, CUstream stream)
#define PREFETCHED pointers, sizes, count, locations, indices, location_count, flags, stream

MOVES(cuMemPrefetchAsync, PREFETCH, pointer, size, device, stream)
MOVES(cuMemPrefetchAsync_v2, PREFETCH_V2, pointer, size, location, flags, stream)
MOVES(cuMemPrefetchBatchAsync, PREFETCHES, PREFETCHED)
MOVES(cuMemDiscardAndPrefetchBatchAsync, PREFETCHES, PREFETCHED)

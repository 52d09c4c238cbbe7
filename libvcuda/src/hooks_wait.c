/*
 * The wrappers of libcuda.so.1 that give a stream something to do which takes none of the card's time (the list:
 * cuda_hooks.h): functions of the host, waits, memory that moves between card and host. They are not accounted and never
 * wait; what the stream does with the card before and after is told from it.
 */
#include "cores.h"
#include "cuda_hooks.h"

#define INTERRUPT(symbol, meaning, parameters, ...)            \
	EXPORT CUresult symbol parameters                      \
	{                                                      \
		(void)cores_interrupt(stream, meaning);        \
		return REAL(symbol, __VA_ARGS__);              \
	}

/* A function and its variant for threads' own default streams. */
#define INTERRUPTS(symbol, parameters, ...)                                \
	INTERRUPT(symbol, STREAM_LEGACY, parameters, __VA_ARGS__)          \
	INTERRUPT(symbol##_ptsz, STREAM_PER_THREAD, parameters, __VA_ARGS__)

INTERRUPTS(cuLaunchHostFunc, (CUstream stream, void *function, void *data), stream, function, data)
INTERRUPTS(cuLaunchHostFunc_v2, (CUstream stream, void *function, void *data, unsigned int mode), stream, function, data,
	   mode)
INTERRUPTS(cuStreamAddCallback, (CUstream stream, void *callback, void *data, unsigned int flags), stream, callback, data,
	   flags)

#define WAITS_32 (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
#define WAITS_64 (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
#define OPERATIONS (CUstream stream, unsigned int count, void *list, unsigned int flags)

INTERRUPTS(cuStreamWaitValue32, WAITS_32, stream, address, value, flags)
INTERRUPTS(cuStreamWaitValue32_v2, WAITS_32, stream, address, value, flags)
INTERRUPTS(cuStreamWaitValue64, WAITS_64, stream, address, value, flags)
INTERRUPTS(cuStreamWaitValue64_v2, WAITS_64, stream, address, value, flags)
INTERRUPTS(cuStreamBatchMemOp, OPERATIONS, stream, count, list, flags)
INTERRUPTS(cuStreamBatchMemOp_v2, OPERATIONS, stream, count, list, flags)
INTERRUPTS(cuWaitExternalSemaphoresAsync, (const void *semaphores, const void *params, unsigned int count, CUstream stream),
	   semaphores, params, count, stream)

/* Within one context the waiting is for work that counts itself. */
#define WAIT_EVENT(symbol, meaning)                                                     \
	EXPORT CUresult symbol(CUstream stream, CUevent event, unsigned int flags)      \
	{                                                                               \
		if (batches_contexts() > 1)                                             \
			(void)cores_interrupt(stream, meaning);                         \
		return REAL(symbol, stream, event, flags);                              \
	}

WAIT_EVENT(cuStreamWaitEvent, STREAM_LEGACY)
WAIT_EVENT(cuStreamWaitEvent_ptsz, STREAM_PER_THREAD)

/* ---- managed memory moves as copies over the bus do ---- */

#define PREFETCH (CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream)
#define PREFETCH_V2 (CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned int flags, CUstream stream)
#define PREFETCHES (CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, size_t *indices, \
		    size_t location_count, unsigned long long flags, CUstream stream)
#define PREFETCHED pointers, sizes, count, locations, indices, location_count, flags, stream

INTERRUPTS(cuMemPrefetchAsync, PREFETCH, pointer, size, device, stream)
INTERRUPTS(cuMemPrefetchAsync_v2, PREFETCH_V2, pointer, size, location, flags, stream)
INTERRUPTS(cuMemPrefetchBatchAsync, PREFETCHES, PREFETCHED)
INTERRUPTS(cuMemDiscardAndPrefetchBatchAsync, PREFETCHES, PREFETCHED)

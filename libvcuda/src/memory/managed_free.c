/*
 * Implements memory/managed_free.h as a list of pending frees under a lock. The lock is not held while the driver
 * frees: that may wait for the whole device.
 */
#include "memory/managed_free.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "driver/capture_mode.h"
#include "driver/cuda_table.h"
#include "memory/charge.h"

enum {
	PATIENCE = 1000,       /* looks at the pending frees while waiting for streams */
	LOOK_NANOSECONDS = 1000000, /* between two looks */
};

struct deferred {
	struct deferred *next;
	struct allocation *entry;
	CUevent event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct deferred *waiting;
static atomic_bool any;

/* A forked child cannot use its parent's memory. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	waiting = NULL;
	atomic_store(&any, false);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static void take_lock(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
}

static void put(struct deferred *deferred)
{
	take_lock();
	deferred->next = waiting;
	waiting = deferred;
	atomic_store(&any, true);
	pthread_mutex_unlock(&lock);
}

/*
 * Takes out the first pending free whose event has been reached or, with `gone`, that belongs to that context. NULL:
 * there is none.
 */
static struct deferred *take(CUcontext gone)
{
	struct deferred **at = &waiting;

	take_lock();
	while (*at && (gone ? (*at)->entry->context != gone : REAL(cuEventQuery, (*at)->event) == CUDA_ERROR_NOT_READY))
		at = &(*at)->next;
	struct deferred *taken = *at;
	if (taken)
		*at = taken->next;
	atomic_store(&any, waiting);
	pthread_mutex_unlock(&lock);
	return taken;
}

static bool mark(CUevent *event, CUstream stream)
{
	if (REAL(cuEventCreate, event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	if (REAL(cuEventRecord, *event, stream) == CUDA_SUCCESS)
		return true;
	(void)REAL(cuEventDestroy_v2, *event);
	return false;
}

/* If the stream takes no event (it belongs to another context), waits for its work. */
CUresult deferred_free(struct allocation *entry, CUstream stream)
{
	struct deferred *deferred = calloc(1, sizeof(*deferred));

	if (deferred && mark(&deferred->event, stream)) {
		deferred->entry = entry;
		put(deferred);
		deferred_settle();
		return CUDA_SUCCESS;
	}
	free(deferred);
	CUresult result = REAL(cuStreamSynchronize, stream);
	if (result == CUDA_SUCCESS)
		result = REAL(cuMemFree_v2, entry->key);
	return charge_give_back(entry, result);
}

/*
 * Gives back the charge whatever the driver returns: an error here is an earlier one of the context, which is then
 * lost.
 */
static void give_back(struct deferred *deferred)
{
	(void)REAL(cuMemFree_v2, deferred->entry->key);
	(void)REAL(cuEventDestroy_v2, deferred->event);
	(void)charge_give_back(deferred->entry, CUDA_SUCCESS);
	free(deferred);
}

static bool settle(void)
{
	struct deferred *deferred;
	bool freed = false;
	CUstreamCaptureMode mode = capture_mode_relax();

	while ((deferred = take(NULL))) {
		give_back(deferred);
		freed = true;
	}
	capture_mode_restore(mode);
	return freed;
}

void deferred_settle(void)
{
	if (atomic_load_explicit(&any, memory_order_relaxed))
		(void)settle();
}

bool deferred_reclaim(void)
{
	const struct timespec pause = {.tv_nsec = LOOK_NANOSECONDS};
	bool freed = false;

	for (int look = 0; look < PATIENCE && atomic_load_explicit(&any, memory_order_relaxed); look++) {
		freed |= settle();
		if (atomic_load(&any))
			nanosleep(&pause, NULL);
	}
	return freed;
}

void deferred_drop_context(CUcontext context)
{
	struct deferred *deferred;

	while (atomic_load_explicit(&any, memory_order_relaxed) && (deferred = take(context))) {
		(void)charge_give_back(deferred->entry, CUDA_SUCCESS);
		free(deferred);
	}
}

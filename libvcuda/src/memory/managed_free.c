/*
 * Implements memory/managed_free.h as a list of pending frees under a lock. The lock is not held while the driver
 * frees: that may wait for the whole device.
 */
#include "memory/managed_free.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "memory/calls.h"
#include "memory/sharing.h"

enum {
	PATIENCE = 1000,       /* looks at the pending frees while waiting for streams */
	LOOK_NANOSECONDS = 1000000, /* between two looks */
};

struct managed_free {
	struct managed_free *next;
	struct allocation *entry;
	CUevent event;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct managed_free *waiting;
static atomic_bool any;

/* A forked child cannot use its parent's memory. */
static void managed_free_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	waiting = NULL;
	atomic_store(&any, false);
}

static void managed_free_watch_forks(void)
{
	pthread_atfork(NULL, NULL, managed_free_after_fork);
}

static void lock_pending(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, managed_free_watch_forks);
	pthread_mutex_lock(&lock);
}

static void put(struct managed_free *pending)
{
	lock_pending();
	pending->next = waiting;
	waiting = pending;
	atomic_store(&any, true);
	pthread_mutex_unlock(&lock);
}

/*
 * Takes out the first pending free whose event has been reached or, with `gone`, that belongs to that context. NULL:
 * there is none.
 */
static struct managed_free *take(CUcontext gone)
{
	struct managed_free **at = &waiting;

	lock_pending();
	while (*at && (gone ? (*at)->entry->context != gone : REAL(cuEventQuery, (*at)->event) == CUDA_ERROR_NOT_READY))
		at = &(*at)->next;
	struct managed_free *taken = *at;
	if (taken)
		*at = taken->next;
	atomic_store(&any, waiting);
	pthread_mutex_unlock(&lock);
	return taken;
}

static bool mark_stream(CUevent *event, CUstream stream)
{
	if (REAL(cuEventCreate, event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		return false;
	if (REAL(cuEventRecord, *event, stream) == CUDA_SUCCESS)
		return true;
	(void)REAL(cuEventDestroy_v2, *event);
	return false;
}

bool managed_free_after(struct allocation *entry, CUstream stream)
{
	struct managed_free *pending = calloc(1, sizeof(*pending));

	if (pending && mark_stream(&pending->event, stream)) {
		pending->entry = entry;
		if (entry->is_freed) /* the memory is not freed by this call */
			calls_end();
		entry->is_freed = false;
		put(pending);
		managed_free_complete();
		return true;
	}
	free(pending);
	return false;
}

/*
 * Gives back the charge whatever the driver returns: an error here is an earlier one of the context, which is then
 * lost.
 */
static void free_now(struct managed_free *pending)
{
	calls_begin();
	(void)REAL(cuMemFree_v2, pending->entry->key);
	(void)REAL(cuEventDestroy_v2, pending->event);
	sharing_release(pending->entry);
	calls_end();
	free(pending);
}

static bool complete_pending(void)
{
	struct managed_free *pending;
	bool freed = false;
	CUstreamCaptureMode mode = stream_capture_relax();

	while ((pending = take(NULL))) {
		free_now(pending);
		freed = true;
	}
	stream_capture_restore(mode);
	return freed;
}

void managed_free_complete(void)
{
	if (atomic_load_explicit(&any, memory_order_relaxed))
		(void)complete_pending();
}

bool managed_free_reclaim(void)
{
	const struct timespec pause = {.tv_nsec = LOOK_NANOSECONDS};
	bool freed = false;

	for (int look = 0; look < PATIENCE && atomic_load_explicit(&any, memory_order_relaxed); look++) {
		freed |= complete_pending();
		if (atomic_load(&any))
			nanosleep(&pause, NULL);
	}
	return freed;
}

void managed_free_drop_context(CUcontext context)
{
	struct managed_free *pending;

	while (atomic_load_explicit(&any, memory_order_relaxed) && (pending = take(context))) {
		sharing_release(pending->entry);
		free(pending);
	}
}

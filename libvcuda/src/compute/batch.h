/*
 * Work under way: launches, in batches of about a millisecond between two events, and the time they really used.
 *
 * Belongs here: contexts and their events, the batches of each stream, and their completion in the card's token bucket.
 * Not whether a launch may begin (compute/token_bucket.h), nor where it waits (compute/throttle.h).
 *
 * The time used is the union of the intervals between the batches' events, on the card's clock: overlapping streams
 * count once. Two kinds of batch count the estimates of their kernels, within the interval: a batch in which the stream
 * was idle (the program waits for each kernel), and a batch that may have overlapped another tenant's work.
 *
 * Any thread may call any of these functions. A thread holds a context's lock across event calls, but never across a
 * launch or a wait.
 */
#ifndef VCUDA_BATCH_H
#define VCUDA_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/estimates.h"
#include "compute/token_bucket.h"
#include "cuda_abi.h"
#include "shared/guard.h"

struct compute_context;

/* One launch, between the wrapper's begin and end. */
struct launch {
	struct compute_context *context; /* NULL: not accounted */
	struct token_bucket *bucket;
	struct estimate *kind;
	CUstream stream;              /* as cuEventRecord takes it */
	uint64_t stream_key;                /* identifies the stream among those of all threads */
	struct guard_thread *thread;
	uint64_t estimate;            /* ns */
	int32_t batch;                /* its place in the context's batches; -1: in none */
	uint64_t order;               /* the order of the batch that it joined, which no later batch at that place has */
	bool opened;                  /* it is the first of its batch */
	bool closes;
	bool may_wait;                /* the call may return after the work is done */
};

/* Takes over what is now known of the kernel's time: it may have been measured while the launch waited. */
static inline void batch_estimate(struct launch *launch)
{
	/* In whole units of `in_flight`, so that a batch subtracts exactly what its launches added. */
	launch->estimate = (estimates_ns(launch->kind) / VGPU_USAGE_TIME_UNIT + 1) * VGPU_USAGE_TIME_UNIT;
}

/* Returns the calling thread's context. NULL: it has none, or its card has no limit. */
struct compute_context *contexts_current(struct guard_thread *thread);

/* The same for a thread that launches nothing. NULL, at the cost of one load: no context has had accounted work. */
struct compute_context *contexts_current_if_any(struct guard_thread *thread);

struct token_bucket *contexts_bucket(struct compute_context *context);

/* Returns how many contexts have had accounted work. */
unsigned int contexts_count(void);

/*
 * Puts the launch into its stream's open batch, if the batch's local slice covers the estimate. False: the caller has
 * to reserve the estimate and to call batch_join.
 */
bool batch_join_reserved(struct launch *launch, uint64_t now);

/* Puts the launch into a batch, before the driver's call. Its `estimate` is reserved. */
void batch_join(struct launch *launch, uint64_t now);

/* Called after the driver's call. A launch that failed is undone. */
void batch_joined(struct launch *launch, bool succeeded);

/* Ends the calling thread's batches: the thread is about to wait with a launch. */
void batch_close(const struct launch *launch);

/* Called before and after the thread waits for all that it launched into a stream. ALL_STREAMS: into any stream. */
#define ALL_STREAMS 0
void batch_waiting(struct compute_context *context, uint64_t stream_key);
void batch_waited(struct compute_context *context, uint64_t stream_key);

/* The stream's next operation takes none of the card's time. With `waits`, it lasts until the program ends it. */
void batch_interrupt(struct compute_context *context, uint64_t stream_key, CUstream stream, bool waits);

/* Ends the stream's batch: the stream is about to be destroyed or captured. */
void batch_forget(struct compute_context *context, uint64_t stream_key, CUstream stream);

/* Completes what has ended, in all contexts. Returns when to look again. UINT64_MAX: nothing is under way. */
uint64_t batch_complete_all(void);

/*
 * Whether work in another stream than the launch's should have ended long ago, and nothing has ended since. After true,
 * the answer is false until as much time has passed again.
 */
bool batch_complete_stuck_elsewhere(const struct launch *launch, uint64_t now);

/* Locks a context that may be about to be destroyed, so that no thread looks at its events. NULL: it has no record. */
struct compute_context *contexts_hold(CUcontext handle);

/* Unlocks the context. With `is_gone`, it was destroyed, and all its work that was under way is written off. */
void batch_complete_release_context(struct compute_context *context, bool is_gone);

/* Called in a forked child, which has nothing under way. */
void batch_complete_reset(void);

/* Called when the process ends: from now on no thread looks at an event. */
void batch_complete_stop(void);

#endif

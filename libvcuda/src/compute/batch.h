/*
 * Work under way: launches, in batches of about a millisecond between two events, and the time they really used.
 *
 * Belongs here: the batches of each stream, and the threads that wait for them. Not the records that hold them
 * (compute/contexts.h), their completion (compute/batch_complete.h), whether a launch may begin (compute/admission.h),
 * nor where it waits (compute/throttle.h).
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

#include "compute/contexts.h"
#include "compute/estimates.h"

#define BATCH_SWITCHES (100 * NS_PER_US) /* what a change of contexts may add to an interval */

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
	uint64_t order; /* the order of the batch that it joined, which no later batch at that place has */
	bool opened; /* it is the first of its batch */
	bool closes;
	bool is_doubted; /* what is held has kernels that were not measured often */
	bool is_held;  /* nothing is reserved for it: it runs when its batch is released (compute/held.h) */
	bool is_member; /* of a group whose kernels go together */
	bool may_wait; /* the call may return after the work is done */
};

/* Takes over what is now known of the kernel's time: it may have been measured while the launch waited. */
static inline void batch_estimate(struct launch *launch)
{
	/* In whole units of `in_flight`, so that a batch subtracts exactly what its launches added. */
	launch->estimate = (estimates_ns(launch->kind) / VGPU_USAGE_TIME_UNIT + 1) * VGPU_USAGE_TIME_UNIT;
}

/*
 * Puts the launch into its stream's open batch, if the batch's local slice covers the estimate. False: the caller has
 * to reserve the estimate and to call batch_join.
 */
bool batch_join_reserved(struct launch *launch, uint64_t now);

/* Puts the launch into a batch, before the driver's call. Its `estimate` is reserved. The program asked for it at `asked`. */
void batch_join(struct launch *launch, uint64_t asked, uint64_t now);

/*
 * What may be held (compute/held.h). An H100 took 1,021 launches in a stream and 4,000 in four (docs/reality.md). Other
 * operations are assumed to fill a stream as launches do: a batch has three, and its end may be due to one of the program's.
 */
#define HELD_MOST (200 * NS_PER_MS)
enum {
	HELD_MOST_BATCHES = BATCHES / 2,
	HELD_MOST_LAUNCHES = 3000,
	HELD_MOST_OPERATIONS = 960, /* in a stream */
	BATCH_OPERATIONS = 4
};

/* Whether its stream can wait for a semaphore and its batch be ended by any thread, and its kernel waits for no other card's. */
bool batch_can_hold(const struct launch *launch);

/* Puts the launch into a batch behind a semaphore, and reserves nothing. False: there is no room. */
bool batch_hold(struct launch *launch, uint64_t now);

/* Called after the driver's call. A launch that failed is undone. True: the poller is needed for what is under way. */
bool batch_joined(struct launch *launch, bool succeeded);

/* Ends the calling thread's batches: the thread is about to wait with a launch. */
void batch_close(const struct launch *launch);

/*
 * Called before and after the thread waits for all that it launched into a stream. ALL_STREAMS: into any stream. True:
 * others wait for the card, so what has ended is to be completed at once.
 */
#define ALL_STREAMS 0
void batch_waiting(struct compute_context *context, uint64_t stream_key);
bool batch_waited(struct compute_context *context, uint64_t stream_key);

/* The stream's next operation takes none of the card's time. With `waits`, it lasts until the program ends it. */
void batch_interrupt(struct compute_context *context, uint64_t stream_key, CUstream stream, bool waits, uint64_t bytes);

/*
 * A launch behind a copy would keep the card for this container while it cannot use it. While others want the card, the
 * launch waits until what its stream does before it is done. Copies of less are done sooner than others could come.
 */
#define BATCH_COPY_WORTH ((uint64_t)4 << 20)
void batch_waits_for_copy(struct compute_context *context, uint64_t stream_key);
void batch_await_copies(const struct launch *launch);

/* Ends the stream's batch: the stream is about to be destroyed or captured. */
void batch_forget(struct compute_context *context, uint64_t stream_key, CUstream stream);

/* ---- for compute/releaser.c; the caller holds the context's lock ---- */

/* Describes the batch that was held first, as one launch. False: none is held. */
bool batch_first_held(struct compute_context *context, struct launch *launch);

/* Releases that batch. `launch->estimate` is reserved for it. */
void batch_release(struct launch *launch, uint64_t now);

/* Releases all, as debt. */
void batch_release_all(struct compute_context *context);

/* ---- for compute/batch_complete.c; the caller holds the context's lock ---- */

/* Returns the batch's local slice to the bucket: no thread will launch into the batch any more. */
void batch_drop_local_slice(struct compute_context *context, struct batch *batch);

/*
 * Ends the batches of streams into which nobody has launched for a while: so their end is seen, however the program learns
 * of it. Not of a thread's own default stream, which other threads cannot name; nor of the legacy stream while another
 * one has work: an event there is a barrier between them; nor behind a wait for the program, where a full stream would
 * hold up the caller until the program goes on. Returns when to look again.
 */
#define BATCH_QUIET (50 * NS_PER_US)
uint64_t batch_end_quiet(struct compute_context *context, uint64_t now);

/*
 * Whether it does: beside others, who wait for that end, and where the program polls and its kernels' mean does not say
 * how long each takes. Where all take the same, looks would only cost.
 */
bool batch_looks_for_quiet(const struct compute_context *context);

/*
 * When it does: beside others shortly before the work should be done, if it takes what it is known to take. Alone, where the
 * kernels' mean says little, that would hide how long the short ones take.
 */
uint64_t batch_quiet_at(const struct compute_context *context, uint64_t joined, uint64_t expected);

/* The batch has ended, and its stream has no other work. */
void batch_note_done(struct compute_context *context, const struct batch *done);

/* Frees the batch: none of its work is under way any more. */
void batch_set_free(struct compute_context *context, struct batch *batch);

#endif

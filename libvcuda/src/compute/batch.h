/*
 * What is under way: launches in batches of about a millisecond between two events, and what they really used.
 *
 * Belongs here: contexts and their events, batches by stream, and their settlement with the card's bucket. Used is
 * the union of the intervals between a batch's events, as the card's clock has them: overlapping streams count once.
 * A batch in which the stream ran dry (a program that waits for each kernel), and one that may have met another
 * tenant's work, count what their kernels are known to take, within the interval.
 *
 * Every function may be called from any thread; the lock of a context is held across event calls, never across a
 * launch or a wait.
 */
#ifndef VCUDA_BATCHES_H
#define VCUDA_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/estimates.h"
#include "compute/token_bucket.h"
#include "cuda_abi.h"
#include "shared/guard.h"

struct core_context;

/* One launch, between the wrapper's begin and end. */
struct launch {
	struct core_context *context; /* NULL: not accounted */
	struct bucket *bucket;
	struct estimate *kind;
	CUstream stream;              /* as cuEventRecord takes it */
	uint64_t lane;                /* which stream, for all threads */
	struct this_thread *thread;
	uint64_t estimate;            /* ns */
	int32_t batch;                /* -1: in none */
	bool opened;                  /* the first of its batch */
	bool closes;
	bool may_wait;                /* the call may return after the work is done */
};

/* The calling thread's context; NULL: none, or its card has no limit. */
struct core_context *batches_context(struct this_thread *thread);
struct bucket *batches_bucket(struct core_context *context);

/* How many contexts have had accounted work. */
unsigned int batches_contexts(void);

/* The launch is made at once, if as much is reserved for what joins its batch; as batches_join, then. */
bool batches_join_reserved(struct launch *launch, uint64_t now);

/* The launch, for which `estimate` is reserved, is about to be made, and was made (or failed: undone). */
void batches_join(struct launch *launch, uint64_t now);
void batches_joined(struct launch *launch, bool succeeded);

/* The thread is about to wait with a launch: its batches end here. */
void batches_close(const struct launch *launch);

/* The thread is about to wait for all that it launched into a stream, and has waited. ALL_LANES: into any. */
#define ALL_LANES 0
void batches_waiting(uint64_t lane);
void batches_waited(uint64_t lane);

/* The stream will be at something else than the card's work, and then, if it `waits`, until the program says so. */
void batches_interrupt(uint64_t lane, CUstream stream, bool waits);

/* The stream is about to be destroyed, or to be captured. */
void batches_forget(uint64_t lane, CUstream stream);

/* Looks what has ended, in all contexts; when to look again, UINT64_MAX: nothing is under way. */
uint64_t batches_settle(void);

/* Nothing in another stream than the launch's has come to an end for long, though it should have. True once in so long. */
bool batches_stuck_elsewhere(const struct launch *launch, uint64_t now);

/*
 * A context is about to be destroyed, perhaps: from here on nobody looks at its events. NULL: nothing of it is known.
 * Let go, it is gone with all that was under way, or goes on.
 */
struct core_context *batches_hold(CUcontext handle);
void batches_let_go(struct core_context *context, bool is_gone);

/* In a forked child: nothing is under way. */
void batches_reset(void);

/* At the end of the process: from now on no event is looked at. */
void batches_stop(void);

#endif

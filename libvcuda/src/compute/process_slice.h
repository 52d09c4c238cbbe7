/*
 * Time slices of the container's processes. One process at a time has the card, because the card changes contexts late
 * and at a cost. The words lie in the container's usage region. Each process takes the time slice by itself, when no
 * process holds it or its holder is overdue.
 *
 * Belongs here: which process of the container may launch. Not which container may (compute/container_slice.h).
 */
#ifndef VCUDA_PROCESS_SLICE_H
#define VCUDA_PROCESS_SLICE_H

#include "compute/token_bucket.h"

#define QUANTUM (10 * NS_PER_MS)      /* of use: a process's time slice while others of the container wait */
#define LONGEST_SLICE (100 * NS_PER_MS) /* by the clock: the longest time slice of a process */
#define GRACE (150 * NS_PER_US)       /* time for an idle holder to go on: changing contexts costs */
#define LATE_LOOK (5 * NS_PER_MS)     /* until the next look of a process that will be woken when it is next */

enum { NOBODY = -1 };

/* Returns the slot, other than the process's own, that has waited longest. NOBODY: none waits. */
int process_slice_first_waiting(const struct token_bucket *bucket);

/* Whether another process has waited longer than this one. A process that does not wait has not waited. */
bool process_slice_is_behind(const struct token_bucket *bucket);

/* Ends this process's time slice if others wait, and wakes the process that has waited longest. */
void process_slice_hand_over(struct token_bucket *bucket);

/* Prolongs the time slice while work takes longer than its estimate, for a second at most. */
void process_slice_extend(struct token_bucket *bucket, uint64_t now);

/* Takes the time slice from `holder`, if this process may. *again as in token_bucket_try. */
bool process_slice_take(struct token_bucket *bucket, uint64_t holder, uint64_t now, uint64_t *again);

static inline bool process_slice_is_over(const struct token_bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t since = LOAD(time->held_since);

	return LOAD(time->used) - LOAD(time->held_used) >= QUANTUM || now - since >= LONGEST_SLICE;
}

static inline void process_slice_begin(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->held_since, now);
	STORE(bucket->shared.time->held_used, LOAD(bucket->shared.time->used));
}

/* The holder goes on until its time slice is over and another process waits. Then it lets its work end. */
static inline bool process_slice_keep(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!process_slice_is_over(bucket, now))
		return true;
	if (process_slice_first_waiting(bucket) == NOBODY) {
		process_slice_begin(bucket, now);
		return true;
	}
	if (!token_bucket_in_flight(bucket))
		process_slice_hand_over(bucket);
	*again = bounds_max(LOAD(bucket->finish), now + LATE_LOOK);
	return false;
}

static inline bool process_slice_has(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return process_slice_keep(bucket, now, again);
	return process_slice_take(bucket, holder, now, again);
}

#endif

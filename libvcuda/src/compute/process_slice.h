/*
 * Time slices of the container's processes. One process at a time has the card, because the card changes contexts late
 * and at a cost. The words lie in the container's usage region. Each process takes the time slice by itself, when no
 * process holds it or its holder is overdue.
 *
 * Belongs here: which process of the container may launch. Not which container may (compute/container_slice.h).
 */
#ifndef VCUDA_BUCKET_TURN_H
#define VCUDA_BUCKET_TURN_H

#include "base/atomics.h"

#define QUANTUM (10 * NS_PER_MS)      /* of use: a process's time slice while others of the container wait */
#define LONGEST_TURN (100 * NS_PER_MS) /* by the clock: the longest time slice of a process */
#define GRACE (150 * NS_PER_US)       /* time for an idle holder to go on: changing contexts costs */
#define LATE_LOOK (5 * NS_PER_MS)     /* until the next look of a process that will be woken when it is next */

enum { NOBODY = -1 };

/* Returns the slot, other than the process's own, that has waited longest. NOBODY: none waits. */
int bucket_first_waiting(const struct bucket *bucket);

/* Whether another process has waited longer than this one. A process that does not wait has not waited. */
bool bucket_is_behind(const struct bucket *bucket);

/* Ends this process's time slice if others wait, and wakes the process that has waited longest. */
void bucket_hand_over(struct bucket *bucket);

/* Prolongs the time slice while work takes longer than its estimate, for a second at most. */
void bucket_keep_turn(struct bucket *bucket, uint64_t now);

/* Takes the time slice from `holder`, if this process may. *again as in bucket_try. */
bool bucket_take_turn(struct bucket *bucket, uint64_t holder, uint64_t now, uint64_t *again);

static inline bool is_turn_over(const struct bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t since = LOAD(time->held_since);

	return LOAD(time->used) - LOAD(time->held_used) >= QUANTUM || now - since >= LONGEST_TURN;
}

static inline void begin_turn(struct bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->held_since, now);
	STORE(bucket->shared.time->held_used, LOAD(bucket->shared.time->used));
}

/* The holder goes on until its time slice is over and another process waits. Then it lets its work end. */
static inline bool keep_turn(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!is_turn_over(bucket, now))
		return true;
	if (bucket_first_waiting(bucket) == NOBODY) {
		begin_turn(bucket, now);
		return true;
	}
	if (!bucket_in_flight(bucket))
		bucket_hand_over(bucket);
	*again = most(LOAD(bucket->finish), now + LATE_LOOK);
	return false;
}

static inline bool has_turn(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return keep_turn(bucket, now, again);
	return bucket_take_turn(bucket, holder, now, again);
}

#endif

/*
 * Turns of the container's processes: one at a time has the card, which changes contexts late and at a cost. The words
 * are the container's; each process takes the turn by itself when nobody has it, or whoever has it is overdue.
 */
#ifndef VCUDA_BUCKET_TURN_H
#define VCUDA_BUCKET_TURN_H

#include "base/atomics.h"

#define QUANTUM (10 * NS_PER_MS)      /* of use by a process, while others of the container wait; */
#define LONGEST_TURN (100 * NS_PER_MS) /* by the clock */
#define GRACE (150 * NS_PER_US)       /* and who has it, to go on: changing contexts costs */
#define LATE_LOOK (5 * NS_PER_MS)     /* of those who will be woken when it is their turn */

enum { NOBODY = -1 };

/* The slot, other than its own, that has waited longest. */
int bucket_first_waiting(const struct bucket *bucket);

/* Has another process waited longer than this one? One that does not wait has not waited. */
bool bucket_is_behind(const struct bucket *bucket);

/* Gives the turn up for whoever waits, and wakes the first of them. */
void bucket_hand_over(struct bucket *bucket);

/* Its work goes on for longer than thought: the turn is not to be taken meanwhile, for a second at most. */
void bucket_keep_turn(struct bucket *bucket, uint64_t now);

/* Takes it from `holder`, if it may; *again as in bucket_try. */
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

/* The holder goes on until its time is over and somebody waits; then it lets its work drain. */
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

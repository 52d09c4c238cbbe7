/* See compute/process_slice.h. */
#include "compute/process_slice.h"

#define QUANTUM (10 * NS_PER_MS)        /* of use: a process's time slice while others of the container wait */
#define LONGEST_SLICE (100 * NS_PER_MS) /* by the clock: the longest time slice of a process */
#define OVERDUE (2 * NS_PER_MS)       /* after the expected end of the holder's work, its time slice is taken */
#define LONGEST_KEPT NS_PER_S        /* while no work ends: it may be waiting for another process */
#define COURTESY (300 * NS_PER_US)    /* how long a free time slice is left to the process that has waited longer */

enum { NOBODY = -1 };

static void begin_process_slice(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->held_since, now);
	STORE(bucket->shared.time->held_used, LOAD(bucket->shared.time->used));
}

bool process_slice_is_over(const struct token_bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t since = LOAD(time->held_since);

	return LOAD(time->used) - LOAD(time->held_used) >= QUANTUM || now - since >= LONGEST_SLICE;
}

static uint32_t waiting_time(uint64_t now)
{
	return (uint32_t)(now >> 10) | 1;
}

static bool has_waited_longer(const struct vgpu_usage_flight *flights, uint32_t one, uint32_t other)
{
	int32_t less = (int32_t)(LOAD(flights[other].waiting) - LOAD(flights[one].waiting));

	return less > 0 || (!less && one < other);
}

/* Returns the slot, other than the process's own, that has waited longest. NOBODY: none waits. */
static int first_waiting(const struct token_bucket *bucket)
{
	const struct vgpu_usage_flight *flights = bucket->shared.flights;
	uint32_t slots = bucket->is_local ? 0 : usage_slot_count();
	int first = NOBODY;

	for (uint32_t i = 0; i < slots; i++)
		if (i != bucket->shared.slot && LOAD(flights[i].waiting) &&
		    (first == NOBODY || has_waited_longer(flights, i, (uint32_t)first)))
			first = (int)i;
	return first;
}

bool process_slice_others_wait(const struct token_bucket *bucket)
{
	return first_waiting(bucket) != NOBODY;
}

bool process_slice_is_behind(const struct token_bucket *bucket)
{
	int first = first_waiting(bucket);

	return first != NOBODY && (!LOAD(token_bucket_own_flight(bucket)->waiting) ||
				   has_waited_longer(bucket->shared.flights, (uint32_t)first, bucket->shared.slot));
}

void process_slice_hand_over(struct token_bucket *bucket)
{
	int first = first_waiting(bucket);

	if (first != NOBODY && atomics_swap(&bucket->shared.time->holder, bucket->shared.slot + 1, 0))
		clock_wake(&bucket->shared.flights[first].waiting);
}

/* Returns when this process may take the time slice of another one. */
static uint64_t free_at(const struct token_bucket *bucket, uint64_t holder, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t drains = LOAD(time->drains_at), progress = LOAD(time->progress);

	if (!holder || holder > VGPU_USAGE_SLOTS || (bucket->is_local && holder != 1))
		return now;
	bool is_over = process_slice_is_over(bucket, now);
	if (!LOAD(bucket->shared.flights[holder - 1].in_flight))
		return is_over || progress > now ? now : progress + GRACE;
	return drains + OVERDUE;
}

/* Takes the time slice from `holder`, if this process may. */
static bool take_process_slice(struct token_bucket *bucket, uint64_t holder, uint64_t now, uint64_t *again)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t from = free_at(bucket, holder, now);

	if (from > now) {
		STORE(bucket->free_seen, 0);
		*again = process_slice_is_behind(bucket) ? now + LATE_LOOK : bounds_max(from, now + 50 * NS_PER_US);
		return false;
	}
	if (process_slice_is_behind(bucket)) {
		if (!LOAD(bucket->free_seen))
			STORE(bucket->free_seen, now);
		*again = now + COURTESY;
		if (now - LOAD(bucket->free_seen) < COURTESY)
			return false;
	}
	STORE(bucket->free_seen, 0);
	if (!atomics_swap(&time->holder, holder, bucket->shared.slot + 1))
		return false;
	begin_process_slice(bucket, now);
	STORE(bucket->taken_at, now);
	STORE(time->drains_at, now);
	STORE(bucket->was_waited_for, 1);
	STORE(bucket->has_new_slice, 1);
	return true;
}

void process_slice_wants(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->wanted, now);
}

uint32_t *process_slice_wait(struct token_bucket *bucket, uint64_t now)
{
	uint32_t none = 0;

	STORE(bucket->shared.time->wanted, now);
	STORE(bucket->shared.time->waited, now);
	__atomic_compare_exchange_n(&token_bucket_own_flight(bucket)->waiting, &none, waiting_time(now), false,
				    __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return &token_bucket_own_flight(bucket)->waiting;
}

void process_slice_stop_waiting(struct token_bucket *bucket)
{
	STORE(token_bucket_own_flight(bucket)->waiting, 0);
}

void process_slice_extend(struct token_bucket *bucket, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	if (LOAD(time->holder) == bucket->shared.slot + 1 && now - LOAD(time->progress) < LONGEST_KEPT)
		STORE(time->drains_at, bounds_max(LOAD(time->drains_at), now + OVERDUE));
}

/* The holder goes on until its time slice is over and another process waits. Then it lets its work end. */
static bool keep_process_slice(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!process_slice_is_over(bucket, now))
		return true;
	if (first_waiting(bucket) == NOBODY) {
		begin_process_slice(bucket, now);
		return true;
	}
	if (!token_bucket_in_flight(bucket))
		process_slice_hand_over(bucket);
	*again = bounds_max(LOAD(bucket->finish), now + LATE_LOOK);
	return false;
}

bool process_slice_has(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return keep_process_slice(bucket, now, again);
	return take_process_slice(bucket, holder, now, again);
}

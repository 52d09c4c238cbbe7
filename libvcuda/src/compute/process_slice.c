/* See compute/process_slice.h. */
#include "compute/process_slice.h"

#include "compute/container_slice.h"
#include "compute/presence.h"

#define OVERDUE (2 * NS_PER_MS)       /* after the expected end of the holder's work, its time slice is taken */
#define LONGEST_KEPT NS_PER_S        /* while no work ends: it may be waiting for another process */
#define COURTESY (300 * NS_PER_US)    /* how long a free time slice is left to the process that has waited longer */

static uint32_t waiting_time(uint64_t now)
{
	return (uint32_t)(now >> 10) | 1;
}

static bool has_waited_longer(const struct vgpu_usage_flight *flights, uint32_t one, uint32_t other)
{
	int32_t less = (int32_t)(LOAD(flights[other].waiting) - LOAD(flights[one].waiting));

	return less > 0 || (!less && one < other);
}

int bucket_first_waiting(const struct bucket *bucket)
{
	const struct vgpu_usage_flight *flights = bucket->shared.flights;
	uint32_t slots = bucket->is_local ? 0 : usage_slots();
	int first = NOBODY;

	for (uint32_t i = 0; i < slots; i++)
		if (i != bucket->shared.slot && LOAD(flights[i].waiting) &&
		    (first == NOBODY || has_waited_longer(flights, i, (uint32_t)first)))
			first = (int)i;
	return first;
}

bool bucket_others_wait(const struct bucket *bucket)
{
	return bucket_first_waiting(bucket) != NOBODY || visit_is_awaited();
}

bool bucket_is_behind(const struct bucket *bucket)
{
	int first = bucket_first_waiting(bucket);

	return first != NOBODY && (!LOAD(own_flight(bucket)->waiting) ||
				   has_waited_longer(bucket->shared.flights, (uint32_t)first, bucket->shared.slot));
}

void bucket_hand_over(struct bucket *bucket)
{
	int first = bucket_first_waiting(bucket);

	if (first != NOBODY && swap(&bucket->shared.time->holder, bucket->shared.slot + 1, 0))
		clock_wake(&bucket->shared.flights[first].waiting);
}

/* Returns when this process may take the time slice of another one. */
static uint64_t free_at(const struct bucket *bucket, uint64_t holder, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t drains = LOAD(time->drains_at), progress = LOAD(time->progress);

	if (!holder || holder > VGPU_USAGE_SLOTS || (bucket->is_local && holder != 1))
		return now;
	bool is_over = is_turn_over(bucket, now);
	if (!LOAD(bucket->shared.flights[holder - 1].in_flight))
		return is_over || progress > now ? now : progress + GRACE;
	return drains + OVERDUE;
}

bool bucket_take_turn(struct bucket *bucket, uint64_t holder, uint64_t now, uint64_t *again)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t from = free_at(bucket, holder, now);

	if (from > now) {
		STORE(bucket->free_seen, 0);
		*again = bucket_is_behind(bucket) ? now + LATE_LOOK : most(from, now + 50 * NS_PER_US);
		return false;
	}
	if (bucket_is_behind(bucket)) {
		if (!LOAD(bucket->free_seen))
			STORE(bucket->free_seen, now);
		*again = now + COURTESY;
		if (now - LOAD(bucket->free_seen) < COURTESY)
			return false;
	}
	STORE(bucket->free_seen, 0);
	if (!swap(&time->holder, holder, bucket->shared.slot + 1))
		return false;
	begin_turn(bucket, now);
	STORE(time->drains_at, now);
	STORE(bucket->fresh, 1);
	return true;
}

void bucket_wants(struct bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->wanted, now);
}

uint32_t *bucket_waits(struct bucket *bucket, uint64_t now)
{
	uint32_t none = 0;

	STORE(bucket->shared.time->wanted, now);
	STORE(bucket->shared.time->waited, now);
	__atomic_compare_exchange_n(&own_flight(bucket)->waiting, &none, waiting_time(now), false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	return &own_flight(bucket)->waiting;
}

void bucket_waits_no_more(struct bucket *bucket)
{
	STORE(own_flight(bucket)->waiting, 0);
	visit_unqueue();
}

void bucket_keep_turn(struct bucket *bucket, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	if (LOAD(time->holder) == bucket->shared.slot + 1 && now - LOAD(time->progress) < LONGEST_KEPT)
		STORE(time->drains_at, most(LOAD(time->drains_at), now + OVERDUE));
}

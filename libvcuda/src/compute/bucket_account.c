/* See compute/bucket_account.h. */
#include "compute/bucket_account.h"

#include "compute/process_slice.h"

void bucket_add_level(struct bucket *bucket, uint64_t gain, int64_t most_allowed)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t level = LOAD(*word);
	int64_t now;

	do {
		if (level < -MOST_DEBT || level > most_allowed + MOST_DEBT) /* a process wrote garbage */
			now = 0;
		else if (level >= most_allowed)
			return;
		else
			now = level + (int64_t)gain < most_allowed ? level + (int64_t)gain : most_allowed;
	} while (!__atomic_compare_exchange_n(word, &level, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

static void land(struct bucket *bucket, uint64_t reserved)
{
	uint32_t *word = &bucket->in_flight;
	uint32_t in_flight = LOAD(*word);
	uint32_t less = units(reserved);

	while (!__atomic_compare_exchange_n(word, &in_flight, in_flight > less ? in_flight - less : 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
	publish_flight(bucket);
}

void bucket_release(struct bucket *bucket, uint64_t estimate)
{
	__atomic_fetch_add(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	land(bucket, estimate);
}

void bucket_book(struct bucket *bucket, uint64_t more, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_sub(&time->level, (int64_t)more, __ATOMIC_RELAXED);
	bucket_keep_turn(bucket, now);
}

void bucket_settle(struct bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_add(&time->level, (int64_t)booked - (int64_t)used, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);
	land(bucket, reserved);
	STORE(time->progress, now);
	uint64_t finish = now + bucket_in_flight(bucket);
	STORE(bucket->finish, finish);
	if (LOAD(time->holder) == bucket->shared.slot + 1) {
		STORE(time->drains_at, finish);
		if (finish == now && is_turn_over(bucket, now))
			bucket_hand_over(bucket);
	}
}

uint64_t bucket_uncounted(struct bucket *bucket, uint64_t from, uint64_t to)
{
	from = most(from, LOAD(bucket->counted_until));
	if (to <= from)
		return 0;
	STORE(bucket->counted_until, to);
	return to - from;
}

void bucket_count_back(struct bucket *bucket, uint64_t from, uint64_t to)
{
	(void)swap(&bucket->counted_until, from, to);
}

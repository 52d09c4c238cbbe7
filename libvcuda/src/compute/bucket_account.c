/* See compute/bucket_account.h. */
#include "compute/bucket_account.h"

#include "compute/process_slice.h"

void token_bucket_add(struct token_bucket *bucket, uint64_t gain, int64_t most_allowed)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t tokens = LOAD(*word);
	int64_t now;

	do {
		if (tokens < -MOST_DEBT || tokens > most_allowed + MOST_DEBT) /* a process wrote garbage */
			now = 0;
		else if (tokens >= most_allowed)
			return;
		else
			now = tokens + (int64_t)gain < most_allowed ? tokens + (int64_t)gain : most_allowed;
	} while (!__atomic_compare_exchange_n(word, &tokens, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

static void end_in_flight(struct token_bucket *bucket, uint64_t reserved)
{
	uint32_t *word = &bucket->in_flight;
	uint32_t in_flight = LOAD(*word);
	uint32_t less = token_bucket_units(reserved);

	while (!__atomic_compare_exchange_n(word, &in_flight, in_flight > less ? in_flight - less : 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
	token_bucket_publish_flight(bucket);
}

void token_bucket_release(struct token_bucket *bucket, uint64_t estimate)
{
	__atomic_fetch_add(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	end_in_flight(bucket, estimate);
}

void token_bucket_book(struct token_bucket *bucket, uint64_t more, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_sub(&time->level, (int64_t)more, __ATOMIC_RELAXED);
	process_slice_extend(bucket, now);
}

void token_bucket_complete(struct token_bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_add(&time->level, (int64_t)booked - (int64_t)used, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);
	end_in_flight(bucket, reserved);
	STORE(time->progress, now);
	uint64_t finish = now + token_bucket_in_flight(bucket);
	STORE(bucket->finish, finish);
	if (LOAD(time->holder) == bucket->shared.slot + 1) {
		STORE(time->drains_at, finish);
		if (finish == now && process_slice_is_over(bucket, now))
			process_slice_hand_over(bucket);
	}
}

uint64_t token_bucket_uncounted(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	from = bounds_max(from, LOAD(bucket->counted_until));
	if (to <= from)
		return 0;
	STORE(bucket->counted_until, to);
	return to - from;
}

void token_bucket_count_back(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	(void)atomics_swap(&bucket->counted_until, from, to);
}

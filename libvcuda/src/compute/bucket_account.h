/*
 * The account of a token bucket: the tokens that time adds to it, and the tokens that work uses.
 *
 * Belongs here: adding tokens, and the bucket's capacity. compute/token_bucket.h declares the functions that count use.
 * Not whether a launch may begin (compute/token_bucket.c).
 */
#ifndef VCUDA_BUCKET_ACCOUNT_H
#define VCUDA_BUCKET_ACCOUNT_H

#include "compute/schedule.h"

#define REFILL_EACH (20 * NS_PER_US)
#define MOST_DEBT (60 * (int64_t)NS_PER_S)

/* Adds tokens, up to `most_allowed`. A nonsensical number of tokens becomes 0. */
void token_bucket_add(struct token_bucket *bucket, uint64_t gain, int64_t most_allowed);

/* Returns the capacity: one quota, for a burst. A container that waits for others may be owed another one meanwhile. */
static inline uint64_t token_bucket_capacity(const struct token_bucket *bucket, uint64_t now)
{
	return bounds_max((LOAD(bucket->shared.slice->waiting_since) ? 2 : 1) * schedule_quota(bucket, now), 2 * NS_PER_MS);
}

/* Adds the container's share of the time that has passed. Of several threads, the one that moves the stamp adds it. */
static inline void token_bucket_refill(struct token_bucket *bucket, uint64_t now)
{
	uint64_t *word = &bucket->shared.time->stamp;
	uint64_t stamp = LOAD(*word);

	if (now - stamp < REFILL_EACH || (stamp > now && stamp - now < NS_PER_S) || !atomics_swap(word, stamp, now))
		return;
	uint64_t elapsed = stamp && stamp < now ? bounds_min(now - stamp, (uint64_t)MOST_DEBT * 100) : schedule_period(bucket);
	token_bucket_add(bucket, elapsed * schedule_rate(bucket, now) / WHOLE, (int64_t)token_bucket_capacity(bucket, now));
}

#endif

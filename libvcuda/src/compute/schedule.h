/*
 * The container's schedule on a card: its limits, and what the host has written into the schedule file
 * (shared/schedule_file.h).
 *
 * Belongs here: following changes of both, and what they make the rate, the period, the quota and the refill threshold.
 * Not the tokens (compute/token_bucket.h), nor the file's layout (vgpu_card.h).
 */
#ifndef VCUDA_SCHEDULE_H
#define VCUDA_SCHEDULE_H

#include "compute/token_bucket.h"
#include "shared/limits.h"

#define WHOLE ((uint64_t)1000000)     /* rates are in millionths */

/* Takes over changed limits. A card that they no longer list keeps its last ones. */
void schedule_take_over_limits(struct token_bucket *bucket);

/* Takes over changed limits. True: the card is exclusive, and nothing is to be accounted. */
static inline bool schedule_is_unlimited(struct token_bucket *bucket)
{
	if (limits_sequence() != __atomic_load_n(&bucket->limits_seen, __ATOMIC_RELAXED))
		schedule_take_over_limits(bucket);
	return __atomic_load_n(&bucket->share, __ATOMIC_RELAXED) >= 100;
}

/* Takes over the host's schedule if it has changed, and looks for it if it was not there. */
void schedule_follow(struct token_bucket *bucket, uint64_t now);

/* Returns the host's time at this process's `now`. */
static inline uint64_t schedule_host_time(uint64_t now)
{
	return now + (uint64_t)schedule_file_clock_offset();
}

/* Returns the container's share of the card's time, in millionths. */
uint64_t schedule_own_rate(const struct token_bucket *bucket);

/* Returns what the container may use now, with what it is lent, in millionths. */
uint64_t schedule_rate(const struct token_bucket *bucket, uint64_t now);

/* Returns what the container may use while nobody else wants the card, in millionths. 0: no more than at other times. */
uint64_t schedule_idle_rate(const struct token_bucket *bucket);

/* Returns the ns over which the container is to have its share. */
uint64_t schedule_period(const struct token_bucket *bucket);

/* Returns the quota: ns of the card's time per period, at the present rate. */
uint64_t schedule_quota(const struct token_bucket *bucket, uint64_t now);

/* Returns the refill threshold: the tokens for which a throttled container waits, for fewer and longer sleeps. */
uint64_t schedule_refill_threshold(const struct token_bucket *bucket, uint64_t now);

#endif

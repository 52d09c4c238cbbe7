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

#define WHOLE ((uint64_t)1000000)     /* rates are in millionths */
#define PERCENT (WHOLE / 100)
#define LOOK_FOR_SCHEDULE_EACH (200 * NS_PER_MS)   /* for a schedule that was not there */
#define DEFAULT_PERIOD (20 * NS_PER_MS)       /* where the schedule has none */

/* Looks for a schedule that was not there. */
void schedule_look_for(struct token_bucket *bucket, uint64_t now);

/* Takes over a schedule that has changed. */
void schedule_take_over(struct token_bucket *bucket, const struct vgpu_card_page *published);

static inline void schedule_follow(struct token_bucket *bucket, uint64_t now)
{
	const struct vgpu_card_page *published = __atomic_load_n(&bucket->published, __ATOMIC_ACQUIRE);

	if (!published && now - LOAD(bucket->schedule_looked_at) >= LOOK_FOR_SCHEDULE_EACH)
		schedule_look_for(bucket, now);
	if (published && schedule_file_has_changed(published, LOAD(bucket->schedule.seen)))
		schedule_take_over(bucket, published);
}

static inline bool schedule_is_lent(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t until = LOAD(bucket->schedule.lent_until);

	return until && now + (uint64_t)schedule_file_clock_offset() < until;
}

/* Returns the container's share of the card's time, in millionths. */
static inline uint64_t schedule_own_rate(const struct token_bucket *bucket)
{
	uint64_t share = LOAD(bucket->share) * PERCENT, published = LOAD(bucket->schedule.share);

	return published ? bounds_min(published, share) : share;
}

/* Returns what the container may use now, with what it is lent, in millionths. */
static inline uint64_t schedule_rate(const struct token_bucket *bucket, uint64_t now)
{
	if (schedule_is_lent(bucket, now))
		return bounds_max(LOAD(bucket->share),
				  bounds_min(LOAD(bucket->schedule.lent_rate), LOAD(bucket->ceiling))) * PERCENT;
	return schedule_own_rate(bucket);
}

static inline uint64_t schedule_period(const struct token_bucket *bucket)
{
	uint64_t published = LOAD(bucket->schedule.period);

	return published ? published : DEFAULT_PERIOD;
}

/* Returns the quota: ns of the card's time per period, at the present rate. */
static inline uint64_t schedule_quota(const struct token_bucket *bucket, uint64_t now)
{
	return schedule_rate(bucket, now) * schedule_period(bucket) / WHOLE;
}

/* Returns the refill threshold: the tokens for which a throttled container waits, for fewer and longer sleeps. */
static inline uint64_t schedule_refill_threshold(const struct token_bucket *bucket, uint64_t now)
{
	return bounds_clamp(schedule_quota(bucket, now) / 8, NS_PER_MS / 4, 2 * NS_PER_MS);
}

#endif

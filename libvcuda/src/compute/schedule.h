/*
 * The container's schedule on a card: its limits, and what the host has written into the schedule file
 * (shared/schedule_file.h).
 *
 * Belongs here: following changes of both, and what they make the rate, the period, the quota and the refill threshold.
 * Not the tokens (compute/bucket_account.h), nor the file's layout (vgpu_card.h).
 */
#ifndef VCUDA_BUCKET_TOLD_H
#define VCUDA_BUCKET_TOLD_H

#include "base/atomics.h"

#define WHOLE ((uint64_t)1000000)     /* rates are in millionths */
#define PERCENT (WHOLE / 100)
#define LOOK_EACH (200 * NS_PER_MS)   /* for a schedule that was not there */
#define PERIOD (20 * NS_PER_MS)       /* where the schedule has none */

/* Looks for a schedule that was not there. */
void bucket_look_for_page(struct bucket *bucket, uint64_t now);

/* Takes over a schedule that has changed. */
void bucket_take_over_times(struct bucket *bucket, const struct vgpu_card_page *page);

static inline void follow_page(struct bucket *bucket, uint64_t now)
{
	const struct vgpu_card_page *page = __atomic_load_n(&bucket->page, __ATOMIC_ACQUIRE);

	if (!page && now - LOAD(bucket->page_looked_at) >= LOOK_EACH)
		bucket_look_for_page(bucket, now);
	if (page && card_page_moved(page, LOAD(bucket->times.seen)))
		bucket_take_over_times(bucket, page);
}

static inline bool is_lent(const struct bucket *bucket, uint64_t now)
{
	uint64_t until = LOAD(bucket->times.lent_until);

	return until && now + (uint64_t)card_page_clock_offset() < until;
}

/* Returns the container's share of the card's time, in millionths. */
static inline uint64_t own_rate(const struct bucket *bucket)
{
	uint64_t share = LOAD(bucket->share) * PERCENT, told = LOAD(bucket->times.share);

	return told ? least(told, share) : share;
}

/* Returns what the container may use now, with what it is lent, in millionths. */
static inline uint64_t rate(const struct bucket *bucket, uint64_t now)
{
	if (is_lent(bucket, now))
		return most(LOAD(bucket->share), least(LOAD(bucket->times.lent_rate), LOAD(bucket->ceiling))) * PERCENT;
	return own_rate(bucket);
}

static inline uint64_t period(const struct bucket *bucket)
{
	uint64_t told = LOAD(bucket->times.period);

	return told ? told : PERIOD;
}

/* Returns the quota: ns of the card's time per period, at the present rate. */
static inline uint64_t ration(const struct bucket *bucket, uint64_t now)
{
	return rate(bucket, now) * period(bucket) / WHOLE;
}

/* Returns the refill threshold: the tokens for which a throttled container waits, for fewer and longer sleeps. */
static inline uint64_t draught(const struct bucket *bucket, uint64_t now)
{
	return within(ration(bucket, now) / 8, NS_PER_MS / 4, 2 * NS_PER_MS);
}

#endif

/*
 * What the container is told: its limits, and what the host says about when (shared/schedule_file.h). How much of the card that
 * makes at a time.
 */
#ifndef VCUDA_BUCKET_TOLD_H
#define VCUDA_BUCKET_TOLD_H

#include "base/atomics.h"

#define WHOLE ((uint64_t)1000000)     /* rates are in millionths */
#define PERCENT (WHOLE / 100)
#define LOOK_EACH (200 * NS_PER_MS)   /* for a page that was not there */
#define PERIOD (20 * NS_PER_MS)       /* where the host tells none */

/* The page that was not there may have come; it says something new. */
void bucket_look_for_page(struct bucket *bucket, uint64_t now);
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

/* millionths of the card's time that are the container's, */
static inline uint64_t own_rate(const struct bucket *bucket)
{
	uint64_t share = LOAD(bucket->share) * PERCENT, told = LOAD(bucket->times.share);

	return told ? least(told, share) : share;
}

/* and that it may use now */
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

/* ns of the card per period at the present rate */
static inline uint64_t ration(const struct bucket *bucket, uint64_t now)
{
	return rate(bucket, now) * period(bucket) / WHOLE;
}

/* How much has to be there after the bucket was empty: fewer, longer sleeps. */
static inline uint64_t draught(const struct bucket *bucket, uint64_t now)
{
	return within(ration(bucket, now) / 8, NS_PER_MS / 4, 2 * NS_PER_MS);
}

#endif

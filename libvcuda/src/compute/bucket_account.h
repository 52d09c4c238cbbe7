/* The account: what accrues to the container, and what of it is used (compute/token_bucket.h has the latter). */
#ifndef VCUDA_BUCKET_ACCOUNT_H
#define VCUDA_BUCKET_ACCOUNT_H

#include "compute/schedule.h"

#define ACCRUE_EACH (20 * NS_PER_US)
#define MOST_DEBT (60 * (int64_t)NS_PER_S)

/* At most to `most_allowed`; nonsense becomes nothing. */
void bucket_add_level(struct bucket *bucket, uint64_t gain, int64_t most_allowed);

/* One ration, for a burst; who waits for other containers may be owed another meanwhile. */
static inline uint64_t most_level(const struct bucket *bucket, uint64_t now)
{
	return most((LOAD(bucket->shared.visit->waiting_since) ? 2 : 1) * ration(bucket, now), 2 * NS_PER_MS);
}

/* Adds the share of the time that went by; whoever moves the stamp adds it. */
static inline void accrue(struct bucket *bucket, uint64_t now)
{
	uint64_t *word = &bucket->shared.time->stamp;
	uint64_t stamp = LOAD(*word);

	if (now - stamp < ACCRUE_EACH || (stamp > now && stamp - now < NS_PER_S) || !swap(word, stamp, now))
		return;
	uint64_t elapsed = stamp && stamp < now ? least(now - stamp, (uint64_t)MOST_DEBT * 100) : period(bucket);
	bucket_add_level(bucket, elapsed * rate(bucket, now) / WHOLE, (int64_t)most_level(bucket, now));
}

#endif

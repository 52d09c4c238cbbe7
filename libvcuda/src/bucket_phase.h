/* The container's own part of each period, in which the host wants it to work: when it is, and what fits into it. */
#ifndef VCUDA_BUCKET_PHASE_H
#define VCUDA_BUCKET_PHASE_H

#include "bucket_told.h"

#define LEAD (50 * NS_PER_US)         /* a phase's first launch is on its way before it begins */

/* The one that is or comes next. A lent one ends with the loan: then the container's own counts. */
void bucket_compute_phase(struct bucket *bucket, uint64_t now);

static inline uint64_t phase_length(const struct bucket *bucket, uint64_t now)
{
	return is_lent(bucket, now) ? LOAD(bucket->times.lent_length) : LOAD(bucket->times.phase_length);
}

static inline bool has_phases(const struct bucket *bucket, uint64_t now)
{
	return LOAD(bucket->times.period) && (!is_lent(bucket, now) || LOAD(bucket->times.lent_length));
}

/* A container that is behind its share goes on into the next phase for a while; so does the next one, then. */
static inline uint64_t last_end(const struct bucket *bucket)
{
	uint64_t end = LOAD(bucket->phase_end), length = end - LOAD(bucket->phase_begin);
	int64_t behind = LOAD(bucket->shared.time->level) - (int64_t)draught(bucket, end);

	return end + (behind > 0 ? least((uint64_t)behind, length / 4) : 0);
}

/* Work longer than a phase may begin in the first half of one; other work ends, on average, where the phase ends. */
static inline bool fits(const struct bucket *bucket, uint64_t estimate, uint64_t now)
{
	uint64_t begin = LOAD(bucket->phase_begin), end = LOAD(bucket->phase_end);
	uint64_t start = most(most(LOAD(bucket->finish), now), begin);

	if (estimate > end - begin)
		return start < begin + (end - begin) / 2;
	return start + estimate <= last_end(bucket) + estimate / 2;
}

static inline bool phase_is_open(struct bucket *bucket, uint64_t estimate, uint64_t now, uint64_t *again)
{
	if (!has_phases(bucket, now))
		return true;
	if (now >= last_end(bucket) || LOAD(bucket->phase_begin) > now + LOAD(bucket->times.period))
		bucket_compute_phase(bucket, now);
	uint64_t begin = LOAD(bucket->phase_begin), finish = LOAD(bucket->finish);
	if (now + LEAD < begin) {
		*again = begin - LEAD;
		return false;
	}
	if (fits(bucket, estimate, now))
		return true;
	/* What is under way may be done sooner than thought. */
	*again = finish > now ? now + most((finish - now) / 2, 50 * NS_PER_US)
			      : begin + LOAD(bucket->times.period) - LEAD;
	return false;
}

#endif

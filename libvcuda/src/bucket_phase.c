/* See bucket_phase.h. */
#include "bucket_phase.h"

#define SLICE (2 * NS_PER_MS)         /* the hardware's, at most: how late it may change contexts */

void bucket_compute_phase(struct bucket *bucket, uint64_t now)
{
	uint64_t period = LOAD(bucket->times.period), length = phase_length(bucket, now);
	uint64_t offset = (uint64_t)card_page_clock_offset();
	bool lent = is_lent(bucket, now);
	uint64_t start = lent ? LOAD(bucket->times.lent_start) : LOAD(bucket->times.phase_start);
	uint64_t until = lent ? LOAD(bucket->times.lent_until) - offset : UINT64_MAX;
	uint64_t into = (now + offset + period - start) % period;
	uint64_t begin = now - into + (into >= length ? period : 0);

	STORE(bucket->phase_begin, least(begin, until));
	STORE(bucket->phase_end, least(begin + length, until));
}

uint64_t bucket_outside(const struct bucket *bucket, uint64_t from, uint64_t to)
{
	uint64_t period = LOAD(bucket->times.period), length = phase_length(bucket, to);
	uint64_t begin = LOAD(bucket->phase_begin);

	if (!has_phases(bucket, to) || to <= from)
		return 0;
	/* ns of own phases before a time, counted from some phase's begin before both */
	uint64_t base = begin % period + from / period * period;
	while (base > from)
		base -= period;
	uint64_t before = least(from - base, length);
	uint64_t whole = (to - base) / period * length + least((to - base) % period, length);
	return to - from - (whole - before);
}

enum bucket_edge bucket_edge(struct bucket *bucket, uint64_t now)
{
	uint64_t begin = LOAD(bucket->phase_begin), length = LOAD(bucket->phase_end) - begin;

	if (!has_phases(bucket, now) || LOAD(bucket->times.tenants) == 1)
		return WITHIN_PHASE;
	if (LOAD(bucket->phase_worked) != begin) {
		STORE(bucket->phase_worked, begin);
		return FIRST_IN_PHASE;
	}
	return now < begin + least(3 * SLICE, length / 4) ? EARLY_IN_PHASE : WITHIN_PHASE;
}

/*
 * Values within bounds, as for words that tenants can write.
 *
 * Belongs here: the smaller and the larger of two values, and a value between two. Not atomic access to the words
 * (base/atomics.h).
 */
#ifndef VCUDA_BOUNDS_H
#define VCUDA_BOUNDS_H

#include <stdint.h>

static inline uint64_t bounds_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t bounds_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint64_t bounds_clamp(uint64_t value, uint64_t low, uint64_t high)
{
	return bounds_max(low, bounds_min(value, high));
}

#endif

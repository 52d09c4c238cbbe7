/*
 * The words of a token bucket, in this process and in the memory that its container shares.
 *
 * Belongs here: atomic access to these words, and values within bounds. Not what the words mean
 * (compute/token_bucket.h, vgpu_usage.h), nor when they change.
 */
#ifndef VCUDA_ATOMICS_H
#define VCUDA_ATOMICS_H

#include "compute/token_bucket.h"
#include "driver/clock.h"

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

static inline bool atomics_swap(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

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

static inline struct vgpu_usage_flight *token_bucket_own_flight(const struct token_bucket *bucket)
{
	return &bucket->shared.flights[bucket->shared.slot];
}

static inline uint32_t token_bucket_units(uint64_t ns)
{
	return (uint32_t)((ns + VGPU_USAGE_TIME_UNIT - 1) / VGPU_USAGE_TIME_UNIT);
}

/* Returns the ns that this process has reserved for work under way. */
static inline uint64_t token_bucket_in_flight(const struct token_bucket *bucket)
{
	return (uint64_t)LOAD(bucket->in_flight) * VGPU_USAGE_TIME_UNIT;
}

/* Writes the word that the container's other processes read. This process never reads it. */
static inline void token_bucket_publish_flight(struct token_bucket *bucket)
{
	STORE(token_bucket_own_flight(bucket)->in_flight, LOAD(bucket->in_flight));
}

#endif

/*
 * Atomic access to words that several threads or processes change.
 *
 * Belongs here: loads, stores and the exchange of one word. Not what the words mean (compute/token_bucket.h,
 * vgpu_usage.h), nor values within bounds (base/bounds.h).
 */
#ifndef VCUDA_ATOMICS_H
#define VCUDA_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

static inline bool atomics_swap(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

#endif

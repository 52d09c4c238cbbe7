/*
 * The usage region in this process: the file, its atomic words, and the places of the cards in it.
 *
 * Belongs here: creating the file complete, mapping it once, and access to its words. Only the files usage*.c include
 * this; the interface for all others is shared/usage.h. Slots are in shared/usage_slots.h.
 */
#ifndef VCUDA_USAGE_REGION_H
#define VCUDA_USAGE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/usage.h"
#include "vgpu_usage.h"

extern struct vgpu_usage *_Atomic usage_region; /* NULL: not opened yet */

/*
 * Opens the region if that was not done; with `create`, also creates it. NULL: that failed, or the region is *absent.
 */
struct vgpu_usage *usage_region_or_null(bool create, bool *absent);

/* The card's place; with `create`, a new one if it has none. USAGE_NO_CARD: the card has no place. */
int usage_region_find_card(struct vgpu_usage *usage, const uint8_t uuid[16], bool create);

/* ---- words: any process of the container may write them at any time ---- */

static inline uint64_t usage_region_load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void usage_region_store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline bool usage_region_swap(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline void usage_region_add(uint64_t *word, uint64_t value)
{
	__atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static inline uint64_t usage_region_load_unlisted(const uint16_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST) * VGPU_USAGE_UNLISTED_UNIT;
}

static inline void usage_region_store_unlisted(uint16_t *word, uint64_t bytes)
{
	uint64_t units = (bytes + VGPU_USAGE_UNLISTED_UNIT - 1) / VGPU_USAGE_UNLISTED_UNIT;

	__atomic_store_n(word, units < UINT16_MAX ? (uint16_t)units : UINT16_MAX, __ATOMIC_SEQ_CST);
}

static inline uint64_t usage_region_load_overhead(const uint32_t *word)
{
	return (uint64_t)(__atomic_load_n(word, __ATOMIC_SEQ_CST) & ~VGPU_USAGE_EXPECTED) * VGPU_USAGE_OVERHEAD_UNIT;
}

static inline bool usage_region_is_expected(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST) & VGPU_USAGE_EXPECTED;
}

static inline void usage_region_store_overhead(uint32_t *word, uint64_t bytes, bool is_expected)
{
	uint64_t units = bytes / VGPU_USAGE_OVERHEAD_UNIT + (bytes % VGPU_USAGE_OVERHEAD_UNIT != 0);

	uint32_t shown = units < VGPU_USAGE_EXPECTED ? (uint32_t)units : VGPU_USAGE_EXPECTED - 1;

	__atomic_store_n(word, shown | (is_expected ? VGPU_USAGE_EXPECTED : 0), __ATOMIC_SEQ_CST);
}

#endif

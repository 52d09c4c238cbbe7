/*
 * The parts of a batch that compute/batch.c, which makes launches, and compute/batch_complete.c, which completes them,
 * share. No other file includes this header: others use compute/batch.h.
 *
 * The caller of every function holds the context's lock.
 */
#ifndef VCUDA_BATCH_PARTS_H
#define VCUDA_BATCH_PARTS_H

#include "compute/contexts.h"

#define SWITCHES (100 * NS_PER_US)      /* what a change of contexts may add to an interval */
#define SLICE (2 * NS_PER_MS)           /* the hardware's time slice of a context */

/* Returns the batch's local slice to the bucket: no thread will launch into the batch any more. */
void batch_drop_spare(struct core_context *context, struct batch *batch);

/* Frees the batch: none of its work is under way any more. */
void batch_set_free(struct core_context *context, struct batch *batch);

static inline struct lane *lane_of(struct core_context *context, uint64_t key)
{
	uint32_t place = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) % LANES;
	struct lane *lane = &context->lanes[place];

	for (int i = 0; i < LANES; i++) {
		struct lane *at = &context->lanes[(place + (uint32_t)i) % LANES];
		if (at->key == key)
			return at;
		if (!at->key) {
			at->key = key;
			return at;
		}
	}
	if (lane->open < 0)
		lane->key = key; /* its stream has no open batch, and is most likely gone */
	return lane;
}

#endif

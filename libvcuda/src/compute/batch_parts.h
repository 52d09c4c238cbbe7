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
void batch_drop_local_slice(struct compute_context *context, struct batch *batch);

/* Frees the batch: none of its work is under way any more. */
void batch_set_free(struct compute_context *context, struct batch *batch);

/* The work of containers that do not wait for this one may lie within the batch's interval. */
static inline void batch_parts_mark_mixed(struct batch *batch)
{
	batch->is_unsure = true;
	batch->allowance = SLICE + SWITCHES;
}

static inline struct stream_slot *batch_parts_slot_of(struct compute_context *context, uint64_t key)
{
	uint32_t place = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) % STREAM_SLOTS;
	struct stream_slot *slot = &context->slots[place];

	for (int i = 0; i < STREAM_SLOTS; i++) {
		struct stream_slot *at = &context->slots[(place + (uint32_t)i) % STREAM_SLOTS];
		if (at->key == key)
			return at;
		if (!at->key) {
			at->key = key;
			return at;
		}
	}
	if (slot->open < 0)
		slot->key = key; /* its stream has no open batch, and is most likely gone */
	return slot;
}

#endif

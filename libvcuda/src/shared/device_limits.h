/*
 * The current card of a CUDA call and its limit: CUDA device -> UUID -> limits file, never by index.
 */
#ifndef VCUDA_CARDS_H
#define VCUDA_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/usage.h"

struct limited_card {
	uint8_t uuid[16];
	uint64_t memory; /* the limit now; VGPU_UNLIMITED: only counted */
	uint64_t overhead; /* what the driver holds for the container beside its allocations, as the host saw; 0: unknown */
	bool oversubscribe;
	uint32_t cores;      /* percent: the share, and what it may grow to */
	uint32_t core_limit;
};

static inline struct usage_limit limit_of(const struct limited_card *card)
{
	return (struct usage_limit){card->memory, card->overhead};
}

/* False: the device has no entry in the limits file, or the driver does not know it. */
bool card_of_device(CUdevice device, struct limited_card *card);

/* The device of the calling thread's context; false: it has none. */
bool current_device(CUdevice *device);

#endif

/*
 * The current card of a CUDA call and its limit: CUDA device -> UUID -> limits file, never by index.
 */
#ifndef VCUDA_CARDS_H
#define VCUDA_CARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

struct limited_card {
	uint8_t uuid[16];
	uint64_t memory; /* the limit now; VGPU_UNLIMITED: only counted */
	bool oversubscribe;
	uint32_t cores;      /* percent: the share, and what it may grow to */
	uint32_t core_limit;
};

/* False: the device has no entry in the limits file, or the driver does not know it. */
bool card_of_device(CUdevice device, struct limited_card *card);

/* The device of the calling thread's context; false: it has none. */
bool current_device(CUdevice *device);

#endif

/*
 * The limits of a CUDA device: from the device to its UUID, and from the UUID to the entry in the limits file. A MIG
 * instance is a card of its own.
 *
 * Belongs here: the lookup for libcuda's side. It never uses an index, which depends on the caller. Not here: the file
 * itself (shared/limits.h) and NVML's devices (hooks/nvml_device.h).
 */
#ifndef VCUDA_DEVICE_LIMITS_H
#define VCUDA_DEVICE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/usage.h"

struct device_limits {
	uint8_t uuid[16];
	uint64_t memory;     /* the present limit in bytes; VGPU_UNLIMITED: usage is only counted */
	uint64_t overhead; /* bytes that the driver holds beside the allocations, measured by the host; 0: unknown */
	bool oversubscribe;
	uint32_t cores; /* percent of the card's time that is the container's share */
	uint32_t core_limit; /* percent to which the share may grow */
};

static inline struct usage_limit device_limits_memory(const struct device_limits *card)
{
	return (struct usage_limit){card->memory, card->overhead};
}

/* False: the device has no entry in the limits file, or the driver returns no UUID for it. */
bool device_limits_of(CUdevice device, struct device_limits *card);

/*
 * Whether the device is a MIG instance that the limits file does not list: it has the numbers of one that was this
 * container's and was destroyed, or CAP_SYS_ADMIN shows it (docs/mig.md). A whole card that is not listed has no limit.
 */
bool device_limits_is_foreign(CUdevice device);

/* The device of the calling thread's current context. False: it has none. */
bool device_limits_current_device(CUdevice *device);

#endif

/*
 * Which cards of NVML are shares: device handle -> UUID -> limits file, never by index.
 */
#ifndef VCUDA_NVML_SHARE_H
#define VCUDA_NVML_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_abi.h"
#include "shared/limits_file.h"

enum sight {
	WHOLE_CARD, /* without an entry in the limits file, or without such a file: told as it is */
	SHARE,
	UNKNOWN,    /* the limits file is broken, or the driver does not know the device */
};

enum sight sight_of(nvmlDevice_t device, uint8_t uuid[16], struct card_limits *limits);

/* What the driver holds for the container's processes beyond what they have booked of the share. Guard held. */
uint64_t nvml_unbooked(nvmlDevice_t device, const uint8_t uuid[16]);

/* As guard_enter of libcuda's side: false for calls that the driver makes to its own exports. */
bool nvml_guard_enter(void);
void nvml_guard_leave(void);

#endif

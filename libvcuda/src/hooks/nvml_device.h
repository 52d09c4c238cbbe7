/*
 * Which of NVML's devices are shares: from the device handle to the UUID, and from the UUID to the entry in the limits
 * file.
 *
 * Belongs here: that lookup, which never uses an index, and the guard of NVML's side. The wrappers that use them are in
 * hooks/nvml.c and hooks/nvml_processes.c. shared/device_limits.h does the same for libcuda's side.
 */
#ifndef VCUDA_NVML_DEVICE_H
#define VCUDA_NVML_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_abi.h"
#include "shared/limits.h"

enum sight {
	WHOLE_CARD, /* there is no limits file, or no entry in it: the wrappers return the driver's figures */
	SHARE,
	UNKNOWN,    /* the limits file is broken, or the driver returns no UUID for the device */
};

enum sight nvml_device_sight(nvmlDevice_t device, uint8_t uuid[16], struct card_limits *limits);

/*
 * What a wrapper returns where the sight is UNKNOWN: the driver's own error for the device, such as GPU_IS_LOST.
 * NVML_ERROR_UNKNOWN if the driver has none.
 */
nvmlReturn_t nvml_device_error(nvmlDevice_t device);

/* The same as guard_enter on libcuda's side: false for calls that the driver makes to its own exports. */
bool nvml_device_guard_enter(void);
void nvml_device_guard_leave(void);

#endif

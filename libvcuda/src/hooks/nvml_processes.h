/*
 * What the driver's lists of processes show of a share, for the wrappers of other files.
 *
 * Belongs here: the unaccounted overhead. Not the lists themselves, which only hooks/nvml_processes.c returns, nor
 * which devices are shares (hooks/nvml_device.h).
 */
#ifndef VCUDA_NVML_PROCESSES_H
#define VCUDA_NVML_PROCESSES_H

#include <stdint.h>

#include "nvml_abi.h"

/* The unaccounted overhead of the container's processes on the share. Called with the guard held. */
uint64_t nvml_processes_unbooked(nvmlDevice_t device, const uint8_t uuid[16]);

#endif

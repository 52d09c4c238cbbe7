/*
 * What the driver itself takes of a card for this process: contexts, modules, printf and heap buffers, padding, and
 * whatever was allocated by ways that no hook sees (private export tables). No call tells its size; NVML's figure for
 * the process does. Booked is what that figure exceeds the process's other charges by, so that the container is
 * charged what the card really gives, by whatever way.
 *
 * Where NVML lists no process of this pid (drivers that know the host's pids alone), nothing is booked.
 */
#ifndef VCUDA_OVERHEAD_H
#define VCUDA_OVERHEAD_H

#include <stdbool.h>

#include "cuda_abi.h"

/* A context is about to be made: the last moment to see whether NVML's figure for this pid is somebody else's. */
void overhead_expect(CUdevice device);

/* The process may hold more of the device now. False: the container has no room for it, and nothing more is booked. */
bool overhead_grows(CUdevice device);

/* As above, after the fact: what the process holds is booked, room or not. */
void overhead_follow(CUdevice device);

/* As above for the current device, unless it was done less than a few seconds ago. Some 10 ns then. */
void overhead_follow_rarely(CUdevice device);

#endif

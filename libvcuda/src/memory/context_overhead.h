/*
 * What the driver itself takes of a card for this process: contexts, modules, printf and heap buffers, padding, and
 * whatever was allocated by ways that no hook sees (private export tables). No call tells its size; NVML's figure for
 * the process does. Booked is what that figure exceeds the process's other charges by, so that the container is
 * charged what the card really gives, by whatever way.
 *
 * NVML is loaded and asked only when the answer matters: while the container's limit has room for the most that
 * contexts and code may take, a mark in the usage region says that this process has some (VGPU_USAGE_UNSEEN_MOST). Who
 * finds no room, or is asked what is free, looks for all who are marked. A process that lives on looks for itself some
 * seconds later.
 *
 * Where NVML lists the host's pids (older drivers), this process is one of the list and cannot be told which: booked is
 * the least that any of them holds beyond this process's charges. vgpud counts the rest, see limited_card.overhead.
 */
#ifndef VCUDA_OVERHEAD_H
#define VCUDA_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* A context is about to be made. */
void overhead_expect(CUdevice device);

/* It was made. False: the container has no room for it, and nothing more is booked. */
bool overhead_grows(CUdevice device);

/* The driver may hold more of the device for this process than before; what it holds counts, room or not. */
void overhead_changed(CUdevice device);

/* It may hold less. */
void overhead_shrank(CUdevice device);

/* What it holds is booked now, room or not. */
void overhead_follow(CUdevice device);

/* Books what it holds for this process, and tells what it holds for others that have not booked it. */
uint64_t overhead_unbooked(CUdevice device);

/* Whether this process holds something that it has not looked at. */
bool overhead_is_unseen(void);

/* overhead_follow for the current device, unless it was done less than a few seconds ago. Some 10 ns then. */
void overhead_follow_rarely(CUdevice device);

#endif

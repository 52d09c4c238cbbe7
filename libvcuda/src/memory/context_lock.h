/*
 * The lock of a device's contexts. The first context of a process takes most of the driver's memory and the last one gives
 * it back, so what a context will take can be told only while no other thread makes or destroys one.
 *
 * Belongs here: the lock. It is held while the driver makes or destroys a context. Calls that do neither take none.
 */
#ifndef VCUDA_CONTEXT_LOCK_H
#define VCUDA_CONTEXT_LOCK_H

#include <stdbool.h>

#include "cuda_abi.h"

/*
 * Returns whether it took the lock: nothing is limited, the driver itself makes the call, or there is no such device
 * (NO_DEVICE). A thread that has the lock is not cancelled.
 */
bool context_lock_take(CUdevice device);
void context_lock_drop(bool is_locked);

/* Whether this thread has a device's lock. */
bool context_lock_is_own(void);

#endif

/*
 * Captures of streams. A launch into a captured stream does not run. An event that is recorded there belongs to the
 * graph and must not be queried.
 *
 * Belongs here: whether a stream is captured, which costs one load while no capture is under way. Not the capture mode
 * of threads (driver/capture_mode.h), nor the hooked calls.
 */
#ifndef VCUDA_CAPTURES_H
#define VCUDA_CAPTURES_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Counts captures that have begun or ended. One that is counted for too long only costs other threads a driver call. */
void captures_change(int by);

/* Called in a forked child, which has no captures. */
void captures_reset(void);

/* Whether any thread captures a stream. */
bool captures_any(void);

/* Whether the stream is captured, or the driver returns an error for it. */
bool captures_has(CUstream stream);

#endif

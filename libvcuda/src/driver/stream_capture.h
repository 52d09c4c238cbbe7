/*
 * Captures of streams. A launch into a captured stream does not run. An event that is recorded there belongs to the
 * graph and must not be queried.
 *
 * Belongs here: whether a stream is captured, which costs one load while no capture is under way. Not the capture mode
 * of threads (driver/capture_mode.h), nor the hooked calls.
 */
#ifndef VCUDA_STREAM_CAPTURE_H
#define VCUDA_STREAM_CAPTURE_H

#include <stdbool.h>

#include "cuda_abi.h"

/* Counts captures that have begun or ended. One that is counted for too long only costs other threads a driver call. */
void stream_capture_change(int by);

/* Called in a forked child, which has no captures. */
void stream_capture_reset(void);

/* Whether any thread captures a stream. */
bool stream_capture_any(void);

/* Whether the stream is captured, or the driver returns an error for it. */
bool stream_capture_has(CUstream stream);

#endif

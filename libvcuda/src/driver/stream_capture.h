/*
 * Captures of streams. A launch into a captured stream does not run. An event that is recorded there belongs to the
 * graph and must not be queried.
 *
 * Belongs here: whether a stream is captured, which costs one load while no capture is under way, and the relaxed
 * capture mode for libvcuda's own calls. Not the hooked calls.
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

/*
 * Puts the thread into the relaxed capture mode. Returns the mode to pass to stream_capture_restore. While one thread
 * captures a stream (cudaStreamCaptureModeGlobal), other threads may not make some calls of the driver. libvcuda makes
 * such calls inside of calls that the program may make, so it makes them in relaxed mode.
 */
CUstreamCaptureMode stream_capture_relax(void);
void stream_capture_restore(CUstreamCaptureMode mode);

#endif

/*
 * The relaxed capture mode, for libvcuda's own calls. While one thread captures a stream (cudaStreamCaptureModeGlobal),
 * other threads may not make some calls of the driver. libvcuda makes such calls inside of calls that the program may
 * make, so it makes them in relaxed mode.
 *
 * Belongs here: the thread's change to that mode and back. Not which streams are captured (driver/stream_capture.h).
 */
#ifndef VCUDA_CAPTURE_MODE_H
#define VCUDA_CAPTURE_MODE_H

#include "driver/cuda_table.h"

/* Returns the mode to pass to stream_capture_restore. */
static inline CUstreamCaptureMode stream_capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	return REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

static inline void stream_capture_restore(CUstreamCaptureMode mode)
{
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		(void)REAL(cuThreadExchangeStreamCaptureMode, &mode);
}

#endif

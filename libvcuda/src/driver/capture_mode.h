/*
 * Calls of libvcuda's own that a thread must not make while another one captures a stream (cudaStreamCaptureModeGlobal),
 * though the call of the program that they are made for is allowed: they run in relaxed mode.
 */
#ifndef VCUDA_CAPTURE_MODE_H
#define VCUDA_CAPTURE_MODE_H

#include "driver/cuda_table.h"

/* The mode to be given to capture_mode_restore. */
static inline CUstreamCaptureMode capture_mode_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	return REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

static inline void capture_mode_restore(CUstreamCaptureMode mode)
{
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		(void)REAL(cuThreadExchangeStreamCaptureMode, &mode);
}

#endif

/* See driver/stream_capture.h. */
#include "driver/stream_capture.h"

#include <stdatomic.h>

#include "driver/cuda_table.h"

static atomic_int captures; /* begun and not ended, by all threads */

void stream_capture_change(int by)
{
	atomic_fetch_add(&captures, by);
}

void stream_capture_reset(void)
{
	atomic_store(&captures, 0);
}

bool stream_capture_any(void)
{
	return atomic_load_explicit(&captures, memory_order_relaxed) != 0;
}

bool stream_capture_has(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!stream_capture_any())
		return false;
	return REAL(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUstreamCaptureMode stream_capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	return REAL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

void stream_capture_restore(CUstreamCaptureMode mode)
{
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		(void)REAL(cuThreadExchangeStreamCaptureMode, &mode);
}

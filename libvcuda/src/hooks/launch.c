/*
 * The wrappers of libcuda.so.1 that launch kernels, destroy streams, and begin and end captures. driver/cuda_table.h
 * lists all wrappers.
 *
 * compute/launch.h decides what a launch costs and when it may begin. driver/stream_capture.h counts captures, since
 * work launched into a capture does not run. Launches of graphs are in hooks/graph.c.
 */
#include "compute/launch.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "memory/context_overhead.h"
#include "memory/first_uses.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"

enum {
	MOST_DEVICES = 64,
	STREAM = 1 << 20, /* bytes, rather too many: docs/reality.md */
};

/* ---- the driver may load a function's code at its first launch ---- */

static bool find_device(CUdevice *device)
{
	bool entered = limits_state() == LIMITS_PRESENT && guard_enter();

	if (entered && device_limits_current_device(device))
		return true;
	if (entered)
		guard_leave();
	return false;
}

/* Nobody knows the size of code, or of a stream, before it is there. Where there is no room, no more is made. */
static bool may_load(void)
{
	CUdevice device;

	if (!find_device(&device))
		return true;
	bool is_over = context_overhead_is_over(device);
	guard_leave();
	return !is_over;
}

static void loaded(const void *function)
{
	CUdevice device;

	first_uses_note(function);
	if (!find_device(&device))
		return;
	context_overhead_changed(device);
	guard_leave();
}

#define LAUNCH(function, blocks, stream, meaning, ...) \
	struct compute_launch call; \
	bool is_first = first_uses_is_new(function); \
	if (__builtin_expect(is_first, 0) && !may_load()) \
		return CUDA_ERROR_OUT_OF_MEMORY; \
	compute_launch_begin(&call, function, blocks, stream, meaning); \
	CUresult result = compute_launch_end(&call, REAL(__VA_ARGS__)); \
	if (__builtin_expect(is_first, 0)) \
		loaded(function); \
	return result

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			       CUstream stream, void **parameters, void **extra)
{
	LAUNCH(function, compute_launch_blocks(grid_x, grid_y, grid_z), stream, STREAM_LEGACY, cuLaunchKernel, function,
	       grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				    unsigned int block_x, unsigned int block_y, unsigned int block_z,
				    unsigned int shared, CUstream stream, void **parameters, void **extra)
{
	LAUNCH(function, compute_launch_blocks(grid_x, grid_y, grid_z), stream, STREAM_PER_THREAD, cuLaunchKernel_ptsz,
	       function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

/* Stands for a missing configuration. The driver gets the call unchanged and returns the error. */
static const CUlaunchConfig nothing;

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	const CUlaunchConfig *is = config ? config : &nothing;

	LAUNCH(function, compute_launch_blocks(is->gridDimX, is->gridDimY, is->gridDimZ), is->hStream, STREAM_LEGACY,
	       cuLaunchKernelEx, config, function, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
				      void **extra)
{
	const CUlaunchConfig *is = config ? config : &nothing;

	LAUNCH(function, compute_launch_blocks(is->gridDimX, is->gridDimY, is->gridDimZ), is->hStream,
	       STREAM_PER_THREAD, cuLaunchKernelEx_ptsz, config, function, parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					  unsigned int block_z, unsigned int shared, CUstream stream, void **parameters)
{
	LAUNCH(function, compute_launch_blocks(grid_x, grid_y, grid_z), stream, STREAM_LEGACY,
	       cuLaunchCooperativeKernel, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
	       parameters);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					       unsigned int block_z, unsigned int shared, CUstream stream,
					       void **parameters)
{
	LAUNCH(function, compute_launch_blocks(grid_x, grid_y, grid_z), stream, STREAM_PER_THREAD,
	       cuLaunchCooperativeKernel_ptsz, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
	       stream, parameters);
}

/* Waits once for all launches together, since their kernels may wait for each other. */
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
	struct compute_launch calls[MOST_DEVICES];

	if (!list || count > MOST_DEVICES || !compute_launch_begin_group(calls, list, count))
		return REAL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	compute_launch_end_group(calls, count, result);
	return result;
}

/* ---- launches of the first CUDA ---- */

EXPORT CUresult cuLaunch(CUfunction function)
{
	LAUNCH(function, 1, NULL, STREAM_LEGACY, cuLaunch, function);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	LAUNCH(function, compute_launch_blocks((unsigned int)width, (unsigned int)height, 1), NULL, STREAM_LEGACY,
	       cuLaunchGrid, function, width, height);
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	LAUNCH(function, compute_launch_blocks((unsigned int)width, (unsigned int)height, 1), stream, STREAM_LEGACY,
	       cuLaunchGridAsync, function, width, height, stream);
}

/* ---- streams: they take memory; when one is destroyed, its last batch ends first ---- */

static CUresult made_stream(CUresult result)
{
	CUdevice device;

	if (result != CUDA_SUCCESS || !find_device(&device))
		return result;
	context_overhead_drifted(device, STREAM);
	guard_leave();
	return result;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return may_load() ? made_stream(GUARDED(REAL(cuStreamCreate, stream, flags))) : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	return may_load() ? made_stream(GUARDED(REAL(cuStreamCreateWithPriority, stream, flags, priority)))
			  : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	compute_launch_forget_stream(stream, STREAM_LEGACY);
	return REAL(cuStreamDestroy, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	compute_launch_forget_stream(stream, STREAM_LEGACY);
	return REAL(cuStreamDestroy_v2, stream);
}

/* ---- captures: they are counted, so that without any no launch has to call the driver ---- */

static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		stream_capture_change(-1);
	return result;
}

/*
 * Ends the stream's batch before the capture begins: an event recorded later would belong to the graph. Counts the
 * capture before it begins, since another stream may join it at once.
 */
#define BEGIN_IN(meaning, function, stream, ...) \
	compute_launch_forget_stream(stream, meaning); \
	stream_capture_change(1); \
	return begun(REAL(function, stream, ##__VA_ARGS__))
#define BEGIN(...) BEGIN_IN(STREAM_LEGACY, __VA_ARGS__)
#define BEGIN_PTSZ(...) BEGIN_IN(STREAM_PER_THREAD, __VA_ARGS__)

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
	BEGIN(cuStreamBeginCapture, stream);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	BEGIN_PTSZ(cuStreamBeginCapture_ptsz, stream);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCapture_v2, stream, mode);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	BEGIN_PTSZ(cuStreamBeginCapture_v2_ptsz, stream, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
					    const void *dependency_data, size_t count, CUstreamCaptureMode mode)
{
	BEGIN(cuStreamBeginCaptureToGraph, stream, graph, dependencies, dependency_data, count, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
						 const void *dependency_data, size_t count, CUstreamCaptureMode mode)
{
	BEGIN_PTSZ(cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, dependency_data, count, mode);
}

/* With any other error the capture may go on. A capture counted too many only makes launches call the driver. */
static CUresult ended(CUresult result)
{
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	    result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
		stream_capture_change(-1);
	return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return ended(REAL(cuStreamEndCapture, stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return ended(REAL(cuStreamEndCapture_ptsz, stream, graph));
}

/* CIG: captures work into the command list of a graphics API. The work runs when that API runs the list. */
EXPORT CUresult cuStreamBeginCaptureToCig(CUstream stream, void *params)
{
	BEGIN(cuStreamBeginCaptureToCig, stream, params);
}

EXPORT CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *params)
{
	BEGIN_PTSZ(cuStreamBeginCaptureToCig_ptsz, stream, params);
}

EXPORT CUresult cuStreamEndCaptureToCig(CUstream stream)
{
	return ended(REAL(cuStreamEndCaptureToCig, stream));
}

EXPORT CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
	return ended(REAL(cuStreamEndCaptureToCig_ptsz, stream));
}

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, void *callback,
					      void *data)
{
	BEGIN(cuStreamBeginRecaptureToGraph, stream, mode, graph, callback, data);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
						   void *callback, void *data)
{
	BEGIN_PTSZ(cuStreamBeginRecaptureToGraph_ptsz, stream, mode, graph, callback, data);
}

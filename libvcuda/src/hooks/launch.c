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

enum { MOST_DEVICES = 64 };

#define LAUNCH(function, blocks, stream, meaning, ...) \
	struct compute_launch call; \
	compute_launch_begin(&call, function, blocks, stream, meaning); \
	return compute_launch_end(&call, REAL(__VA_ARGS__))

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

/* ---- destroying a stream: its last batch ends first ---- */

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

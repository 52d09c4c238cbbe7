/*
 * The wrappers of libcuda.so.1 that start work on a card, and those that tell when work is captured instead (the list:
 * driver/cuda_table.h; graphs: hooks/graph.c). What a launch costs, and when it may begin: compute/launch.h.
 */
#include "compute/launch.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"

enum { MOST_DEVICES = 64 };

#define LAUNCH(function, blocks, stream, meaning, ...)                 \
	struct core_launch call;                                       \
	cores_begin(&call, function, blocks, stream, meaning);         \
	return cores_end(&call, REAL(__VA_ARGS__))

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			       CUstream stream, void **parameters, void **extra)
{
	LAUNCH(function, cores_blocks(grid_x, grid_y, grid_z), stream, STREAM_LEGACY, cuLaunchKernel, function, grid_x,
	       grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
				    unsigned int block_x, unsigned int block_y, unsigned int block_z,
				    unsigned int shared, CUstream stream, void **parameters, void **extra)
{
	LAUNCH(function, cores_blocks(grid_x, grid_y, grid_z), stream, STREAM_PER_THREAD, cuLaunchKernel_ptsz, function,
	       grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

/* What it launches into, should the driver be asked with no configuration: it says what is wrong. */
static const CUlaunchConfig nothing;

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
	const CUlaunchConfig *is = config ? config : &nothing;

	LAUNCH(function, cores_blocks(is->gridDimX, is->gridDimY, is->gridDimZ), is->hStream, STREAM_LEGACY,
	       cuLaunchKernelEx, config, function, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
				      void **extra)
{
	const CUlaunchConfig *is = config ? config : &nothing;

	LAUNCH(function, cores_blocks(is->gridDimX, is->gridDimY, is->gridDimZ), is->hStream, STREAM_PER_THREAD,
	       cuLaunchKernelEx_ptsz, config, function, parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					  unsigned int block_z, unsigned int shared, CUstream stream,
					  void **parameters)
{
	LAUNCH(function, cores_blocks(grid_x, grid_y, grid_z), stream, STREAM_LEGACY, cuLaunchCooperativeKernel,
	       function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
					       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
					       unsigned int block_z, unsigned int shared, CUstream stream,
					       void **parameters)
{
	LAUNCH(function, cores_blocks(grid_x, grid_y, grid_z), stream, STREAM_PER_THREAD,
	       cuLaunchCooperativeKernel_ptsz, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
	       stream, parameters);
}

/* One wait for all of them: they may wait for each other. */
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
	struct core_launch calls[MOST_DEVICES];

	if (!list || count > MOST_DEVICES || !cores_begin_group(calls, list, count))
		return REAL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	cores_end_group(calls, count, result);
	return result;
}

/* ---- the first CUDA's ---- */

EXPORT CUresult cuLaunch(CUfunction function)
{
	LAUNCH(function, 1, NULL, STREAM_LEGACY, cuLaunch, function);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	LAUNCH(function, cores_blocks((unsigned int)width, (unsigned int)height, 1), NULL, STREAM_LEGACY, cuLaunchGrid,
	       function, width, height);
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	LAUNCH(function, cores_blocks((unsigned int)width, (unsigned int)height, 1), stream, STREAM_LEGACY,
	       cuLaunchGridAsync, function, width, height, stream);
}

/* ---- a stream goes: its last batch ends before ---- */

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
	cores_forget(stream, STREAM_LEGACY);
	return REAL(cuStreamDestroy, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	cores_forget(stream, STREAM_LEGACY);
	return REAL(cuStreamDestroy_v2, stream);
}

/* ---- captures: while there are none, no launch has to ask ---- */

static CUresult begun(CUresult result)
{
	if (result != CUDA_SUCCESS)
		captures_change(-1);
	return result;
}

/*
 * What the stream has under way ends before, as long as an event in it is not the graph's. Counted before it begins:
 * another stream may be drawn into it at once.
 */
#define BEGIN_IN(meaning, function, stream, ...)    \
	cores_forget(stream, meaning);              \
	captures_change(1);                         \
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

/* With any other error it may go on; counting one too many only makes launches ask. */
static CUresult ended(CUresult result)
{
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	    result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
		captures_change(-1);
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

/* What a graphics interface's list of commands takes up, which runs when that says so. */
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

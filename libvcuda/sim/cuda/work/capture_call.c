/*
 * The calls by which a stream begins and ends a capture, and asks about it. What a capture is stands in
 * cuda/work/capture.c.
 */
#include "cuda/work/stream.h"

static CUresult begin_capture(CUstream stream, struct sim_graph *graph, const CUgraphNode *dependencies, size_t count,
			      int mode)
{
	struct sim_place *place;

	TRY(sim_stream_lock_place(stream, &place));
	if (place->capture || count > SIM_FRONTIER || (graph && !sim_object_is(graph, SIM_GRAPH)))
		return sim_object_unlock(place->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(sim_capture_begin(place, stream, graph, dependencies, count, mode));
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return mode < 0 || mode > 2 ? CUDA_ERROR_INVALID_VALUE : begin_capture(stream, NULL, NULL, 0, mode);
}

SIM_EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
	return begin_capture(stream, NULL, NULL, 0, SIM_CAPTURE_GLOBAL);
}

SIM_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
						const void *edges, size_t count, int mode)
{
	(void)edges;
	REJECT(!graph || mode < 0 || mode > 2 || (count && !dependencies));
	return begin_capture(stream, graph, dependencies, count, mode);
}

/* Every captured node must lead back to the stream where the capture began. */
SIM_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct sim_place *place;

	TRY(graph ? sim_stream_lock_place(stream, &place) : CUDA_ERROR_INVALID_VALUE);
	*graph = NULL;
	if (!place->capture)
		return sim_object_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (place->capture->origin != stream)
		return sim_object_unlock(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	return sim_object_unlock(sim_capture_end(place, graph));
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
					      const CUgraphNode **dependencies, size_t *count)
{
	struct sim_place *place;

	REJECT(!status);
	*status = CU_STREAM_CAPTURE_NONE;
	if (sim_stream_is_legacy(stream))
		return sim_stream_check(stream);
	TRY(sim_stream_lock_place(stream, &place));
	if (!place->capture)
		return sim_object_unlock(CUDA_SUCCESS);
	*status = place->capture->is_invalid ? CU_STREAM_CAPTURE_INVALIDATED : CU_STREAM_CAPTURE_ACTIVE;
	if (id)
		*id = place->id;
	if (graph)
		*graph = place->capture->graph;
	if (dependencies)
		*dependencies = place->frontier;
	if (count)
		*count = place->count;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* Edges carry no data here. */
SIM_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
					      const CUgraphNode **dependencies, const void **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id)
{
	return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	return cuStreamGetCaptureInfo_v2(stream, status, NULL, NULL, NULL, NULL);
}

/* flags: 0 adds to the frontier, 1 replaces it. */
SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t count,
						      unsigned flags)
{
	struct sim_place *place;

	REJECT(flags > 1 || (count && !dependencies));
	TRY(sim_stream_lock_place(stream, &place));
	if (!place->capture)
		return sim_object_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (flags == 1)
		place->count = 0;
	for (size_t i = 0; i < count; i++)
		sim_capture_widen(place, dependencies[i]);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies, const void *edges,
							 size_t count, unsigned flags)
{
	(void)edges;
	return cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags);
}

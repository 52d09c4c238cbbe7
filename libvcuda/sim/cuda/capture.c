/*
 * Stream capture: work that is submitted to a capturing stream becomes nodes of a graph. Other streams join the capture
 * by waiting for an event of it. Also the capture modes and what they forbid. The graphs themselves are in
 * cuda/graph.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/graph.h"

struct sim_capture {
	struct sim_graph *graph;
	CUstream origin;
	unsigned long long id;
	struct sim_place *places; /* of the streams that take part */
	bool is_invalid;
	bool owns_graph;
	int mode;
	const void *thread;
	struct sim_capture *next; /* list of all captures in progress */
};

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

static unsigned long long last_id;
static struct sim_capture *captures;
static _Thread_local int thread_mode; /* 0 is the global mode; the variable's address identifies the thread */

CUresult sim_capture_work(struct sim_place *place, const struct sim_work *work)
{
	struct sim_node *node;
	CUresult result = place->capture->is_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
	                                             : sim_graph_add(place->capture->graph, place->frontier, place->count,
	                                                             work, &node);

	if (result == CUDA_SUCCESS) {
		place->frontier[0] = node;
		place->count = 1;
	}
	return result;
}

static bool holds(const struct sim_place *place, const struct sim_node *node)
{
	for (unsigned i = 0; i < place->count; i++)
		if (place->frontier[i] == node)
			return true;
	return false;
}

/* If the frontier is full, an empty node gathers it. */
static void widen(struct sim_place *place, struct sim_node *node)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	if (holds(place, node))
		return;
	if (place->count == SIM_FRONTIER && sim_capture_work(place, &work) != CUDA_SUCCESS)
		place->capture->is_invalid = true;
	else
		place->frontier[place->count++] = node;
}

static void drop_capture(struct sim_capture *capture)
{
	struct sim_capture **at = &captures;

	while (*at && *at != capture)
		at = &(*at)->next;
	if (*at)
		*at = capture->next;
	free(capture);
}

bool sim_capture_forbids(void)
{
	bool forbids = false;

	for (struct sim_capture *capture = captures; capture; capture = capture->next) {
		bool is_own = capture->thread == &thread_mode && capture->mode != MODE_RELAXED;
		bool is_of_all = capture->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL;
		if (thread_mode == MODE_RELAXED || !(is_own || is_of_all))
			continue;
		capture->is_invalid = true;
		forbids = true;
	}
	return forbids;
}

static void enter_place(struct sim_place *place)
{
	place->next = place->capture->places;
	place->capture->places = place;
}

void sim_capture_join(struct sim_place *place, const struct sim_place *event)
{
	if (!place->capture) {
		place->capture = event->capture;
		place->id = event->id;
		place->count = 0;
		enter_place(place);
	}
	for (unsigned i = 0; i < event->count; i++)
		widen(place, event->frontier[i]);
}

static void leave(struct sim_place *place)
{
	struct sim_place **at = &place->capture->places;

	while (*at != place)
		at = &(*at)->next;
	*at = place->next;
	place->capture = NULL;
	place->count = 0;
}

void sim_capture_forget(struct sim_place *place)
{
	if (!place->capture)
		return;
	struct sim_capture *capture = place->capture;
	capture->is_invalid = true;
	leave(place);
	if (capture->places)
		return;
	if (capture->owns_graph)
		sim_graph_free(capture->graph);
	drop_capture(capture);
}

static CUresult begin_capture(CUstream stream, struct sim_graph *graph, const CUgraphNode *dependencies, size_t count,
                              int mode)
{
	struct sim_place *place;

	TRY(sim_stream_lock_place(stream, &place));
	if (place->capture || count > SIM_FRONTIER || (graph && !sim_object_is(graph, SIM_GRAPH)))
		return sim_object_unlock(place->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE);
	struct sim_capture *capture = calloc(1, sizeof *capture);
	if (capture)
		capture->graph = graph ? graph : sim_graph_new();
	if (!capture || !capture->graph) {
		free(capture);
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	capture->origin = stream;
	capture->owns_graph = !graph;
	capture->id = ++last_id;
	capture->mode = mode;
	capture->thread = &thread_mode;
	capture->next = captures;
	captures = capture;
	*place = (struct sim_place){.capture = capture, .id = capture->id, .count = (unsigned)count};
	enter_place(place);
	if (count)
		memcpy(place->frontier, dependencies, count * sizeof(struct sim_node *));
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return mode < 0 || mode > 2 ? CUDA_ERROR_INVALID_VALUE : begin_capture(stream, NULL, NULL, 0, mode);
}

SIM_EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
	return begin_capture(stream, NULL, NULL, 0, MODE_GLOBAL);
}

SIM_EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                                const void *edges, size_t count, int mode)
{
	(void)edges;
	if (!graph || mode < 0 || mode > 2 || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	return begin_capture(stream, graph, dependencies, count, mode);
}

static bool is_leaf(const struct sim_graph *graph, const struct sim_node *node)
{
	for (size_t i = 0; i < graph->count; i++)
		for (size_t j = 0; j < graph->nodes[i]->dependency_count; j++)
			if (graph->nodes[i]->dependencies[j] == node)
				return false;
	return true;
}

/* Every captured node must lead back to the stream where the capture began. */
static bool is_joined(const struct sim_place *place)
{
	const struct sim_graph *graph = place->capture->graph;

	for (size_t i = 0; i < graph->count; i++)
		if (is_leaf(graph, graph->nodes[i]) && !holds(place, graph->nodes[i]))
			return false;
	return true;
}

SIM_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct sim_place *place;
	CUresult result = graph ? sim_stream_lock_place(stream, &place) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	*graph = NULL;
	struct sim_capture *capture = place->capture;
	if (!capture)
		return sim_object_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (capture->origin != stream)
		return sim_object_unlock(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->is_invalid)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (capture->owns_graph && !is_joined(place))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (result == CUDA_SUCCESS)
		*graph = capture->graph;
	else if (capture->owns_graph)
		sim_graph_free(capture->graph);
	while (capture->places)
		leave(capture->places);
	drop_capture(capture);
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                              const CUgraphNode **dependencies, size_t *count)
{
	struct sim_place *place;

	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
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

	if (flags > 1 || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(sim_stream_lock_place(stream, &place));
	if (!place->capture)
		return sim_object_unlock(CUDA_ERROR_ILLEGAL_STATE);
	if (flags == 1)
		place->count = 0;
	for (size_t i = 0; i < count; i++)
		widen(place, dependencies[i]);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	if (!mode || *mode < 0 || *mode > 2)
		return CUDA_ERROR_INVALID_VALUE;
	int old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies, const void *edges,
                                                         size_t count, unsigned flags)
{
	(void)edges;
	return cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags);
}

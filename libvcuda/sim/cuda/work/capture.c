/*
 * Captures: work of a stream's place becomes nodes of a graph, other places join by an event, and the capture modes with
 * what they forbid. The calls that begin and end captures of a stream are in cuda/work/capture_call.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/work/capture.h"

static unsigned long long last_id;
static struct sim_capture *captures;
static _Thread_local int thread_mode; /* 0 is the global mode; the variable's address identifies the thread */

CUresult sim_capture_work(struct sim_place *place, const struct sim_work *work)
{
	struct sim_node *node;
	CUresult result = place->capture->is_invalid
				  ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
				  : sim_graph_add(place->capture->graph, place->frontier, place->count, work, &node);

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
void sim_capture_widen(struct sim_place *place, struct sim_node *node)
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
		bool is_own = capture->thread == &thread_mode && capture->mode != SIM_CAPTURE_RELAXED;
		bool is_of_all = capture->mode == SIM_CAPTURE_GLOBAL && thread_mode == SIM_CAPTURE_GLOBAL;
		if (thread_mode == SIM_CAPTURE_RELAXED || !(is_own || is_of_all))
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
		sim_capture_widen(place, event->frontier[i]);
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

CUresult sim_capture_begin(struct sim_place *place, CUstream origin, struct sim_graph *graph,
			   const CUgraphNode *dependencies, size_t count, int mode)
{
	struct sim_capture *capture = calloc(1, sizeof *capture);

	if (capture)
		capture->graph = graph ? graph : sim_graph_new();
	if (!capture || !capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->origin = origin;
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
	return CUDA_SUCCESS;
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

CUresult sim_capture_end(struct sim_place *place, struct sim_graph **graph)
{
	struct sim_capture *capture = place->capture;
	CUresult result = CUDA_SUCCESS;

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
	return result;
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	REJECT(!mode || *mode < 0 || *mode > 2);
	int old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

/*
 * Carrying out work and ending it, and the end of a stream whose handle is gone. cuda/work/engine.c decides when.
 */
#include <stdlib.h>

#include "cuda/memory/graph_memory.h"
#include "cuda/work/queue.h"
#include "state/clock.h"

void sim_finish_perform(struct sim_work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY: sim_copy_perform(&work->copy); break;
	case CU_GRAPH_NODE_TYPE_MEMSET: sim_copy_fill_perform(&work->fill); break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		sim_graph_memory_alloc(work->context, work->memory.device, work->memory.pointer, work->memory.bytes);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE: sim_allocation_free_in_order(work->memory.pointer); break;
	case CU_GRAPH_NODE_TYPE_HOST:
		if (work->host.function)
			work->host.function(work->host.argument);
		else
			work->host.callback(work->host.stream, CUDA_SUCCESS, work->host.argument);
		break;
	default: break;
	}
}

void sim_finish_stream(struct sim_stream *stream)
{
	struct sim_stream **at = &stream->engine->streams;

	if (!stream->is_ending)
		sim_object_hide(stream);
	stream->is_ending = true;
	if (stream->head)
		return;
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	free(stream->object.owned);
	free(stream);
}

void sim_finish_work(struct sim_engine *engine, struct sim_stream *stream, uint64_t time)
{
	struct sim_work *work = stream->head;
	bool is_event = work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;

	stream->head = work->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->last_end = time;
	stream->launches -= work->share != 0;
	engine->pending--;
	if (work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
		work->moment->reached = true;
		work->moment->time = time;
		sim_engines_wake_all();
	}
	if (is_event)
		sim_event_moment_drop(work->moment);
	free(work);
	if (stream->is_ending && !stream->head)
		sim_finish_stream(stream);
	if (engine->waiting)
		sim_clock_signal(&engine->progress);
}

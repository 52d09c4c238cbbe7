#include <stdlib.h>
#include <time.h>

#include "cuda_graph_memory.h"
#include "cuda_queue.h"

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void sim_perform(struct sim_work *work)
{
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY: sim_copy_perform(&work->copy); break;
	case CU_GRAPH_NODE_TYPE_MEMSET: sim_fill_perform(&work->fill); break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: sim_graph_memory_alloc(work); break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE: sim_graph_memory_free(work); break;
	case CU_GRAPH_NODE_TYPE_HOST:
		if (work->host.function)
			work->host.function(work->host.argument);
		else
			work->host.callback(work->host.stream, CUDA_SUCCESS, work->host.argument);
		break;
	default: break;
	}
}

static CUresult capture(struct sim_stream *stream, const struct sim_work *work)
{
	struct sim_event *event = work->event;

	if (work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
		event->place = stream->place;
		return CUDA_SUCCESS;
	}
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
		if (event->place.id != stream->place.id)
			return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
		sim_capture_join(&stream->place, &event->place);
		return CUDA_SUCCESS;
	}
	return sim_capture_work(&stream->place, work);
}

/* Under the lock: is the work's event one, and does waiting for it draw the stream into a capture? */
static CUresult check_event(struct sim_stream *stream, const struct sim_work *work)
{
	if (work->type != CU_GRAPH_NODE_TYPE_EVENT_RECORD && work->type != CU_GRAPH_NODE_TYPE_WAIT_EVENT)
		return CUDA_SUCCESS;
	if (!sim_object_is(work->event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && work->event->place.id && !stream->place.capture) {
		if (stream->is_legacy)
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		stream->place.id = work->event->place.id;
		sim_capture_join(&stream->place, &work->event->place);
	}
	return CUDA_SUCCESS;
}

static CUresult bind_event(struct sim_work *work)
{
	struct sim_event *event = work->event;

	if (work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return sim_event_renew(event, work);
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
		work->moment = event->moment;
		if (work->moment)
			work->moment->references++;
	}
	return CUDA_SUCCESS;
}

CUresult sim_submit(CUstream handle, const struct sim_work *submitted, bool wait)
{
	struct sim_work work = *submitted;
	struct sim_stream *stream;
	CUresult result = sim_lock_stream(handle, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = check_event(stream, &work);
	if (result == CUDA_SUCCESS && stream->place.capture) {
		result = wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : capture(stream, &work);
		pthread_mutex_unlock(&sim_driver.lock);
		return result;
	}
	if (result == CUDA_SUCCESS)
		result = bind_event(&work);
	work.context = stream->object.context;
	if (result == CUDA_SUCCESS && work.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
		work.moment->reached = true;
		work.moment->time = now();
		sim_moment_drop(work.moment);
	}
	if (result == CUDA_SUCCESS && work.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
		sim_moment_drop(work.moment);
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS)
		sim_perform(&work);
	return result;
}

void sim_queue_end(struct sim_stream *stream)
{
	sim_object_destroy(stream);
}

CUresult sim_queue_wait_moment(struct sim_context *context, struct sim_moment *moment)
{
	(void)context;
	(void)moment;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	return sim_check_stream(stream);
}

SIM_EXPORT CUresult cuStreamQuery(CUstream stream)
{
	return sim_check_stream(stream);
}

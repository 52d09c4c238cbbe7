/*
 * The calls for events: creation, recording, waiting, querying and elapsed times. Events themselves are in
 * cuda/work/event.c, what processes share about them in cuda/work/ipc_event.c.
 */
#include "cuda/work/ipc_event.h"
#include "cuda/work/queue.h"
#include "cuda/work/shared_event.h"
#include "state/clock.h"

#define EVENT_FLAGS 7u

SIM_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!event || flags & ~EVENT_FLAGS || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)));
	struct sim_shared *shared = flags & CU_EVENT_INTERPROCESS ? sim_shared_event_new() : NULL;
	if (flags & CU_EVENT_INTERPROCESS && !shared)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_driver.lock);
	*event = sim_object_create(sizeof **event, SIM_EVENT, context);
	if (*event) {
		(*event)->flags = flags;
		(*event)->shared = shared;
	} else {
		sim_shared_event_drop(shared);
	}
	return sim_object_unlock(*event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	return sim_event_destroy(event);
}

/* Whether other processes share the event. False in a capture: there an event only marks a place. */
static bool is_shared(CUevent event, CUstream stream)
{
	int capturing = 0;

	pthread_mutex_lock(&sim_driver.lock);
	bool shared = sim_object_is(event, SIM_EVENT) && event->shared && !event->place.id;
	pthread_mutex_unlock(&sim_driver.lock);
	return shared && cuStreamIsCapturing(stream, &capturing) == CUDA_SUCCESS && !capturing;
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event};

	TRY(sim_object_lock(event, SIM_EVENT));
	bool timed = !(event->flags & CU_EVENT_DISABLE_TIMING);
	pthread_mutex_unlock(&sim_driver.lock);
	sim_clock_charge(timed ? SIM_COST_TIMED_RECORD : SIM_COST_RECORD);
	CUresult result = sim_queue_submit(stream, &work, false);
	return result == CUDA_SUCCESS && is_shared(event, stream) ? sim_ipc_event_record(event, stream) : result;
}

SIM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream);
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};

	REJECT(flags > 1);
	return is_shared(event, stream) ? sim_ipc_event_wait(stream, event) : sim_queue_submit(stream, &work, false);
}

SIM_EXPORT CUresult cuEventQuery(CUevent event)
{
	sim_clock_charge(SIM_COST_QUERY);
	CUresult result = sim_object_lock(event, SIM_EVENT);

	if (result != CUDA_SUCCESS)
		return result;
	if (event->place.id)
		result = CUDA_ERROR_CAPTURED_EVENT;
	else if (sim_capture_forbids())
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else if (event->shared)
		result = sim_ipc_event_query(event);
	else if (event->moment && !event->moment->reached)
		result = CUDA_ERROR_NOT_READY;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	sim_clock_pay(SIM_COST_SYNCHRONIZE);
	CUresult result = sim_object_lock(event, SIM_EVENT);

	if (result != CUDA_SUCCESS)
		return result;
	if (event->place.id)
		result = CUDA_ERROR_CAPTURED_EVENT;
	else if (event->shared)
		sim_ipc_event_synchronize(event);
	else if (event->moment)
		result = sim_queue_wait_moment(event->moment);
	return sim_object_unlock(result);
}

static CUresult elapsed(const struct sim_event *start, const struct sim_event *end, float *milliseconds)
{
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->moment || !end->moment)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!start->moment->reached || !end->moment->reached)
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)((double)(int64_t)(end->moment->time - start->moment->time) / 1e6);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	REJECT(!milliseconds);
	TRY(sim_object_lock(start, SIM_EVENT));
	return sim_object_unlock(sim_object_is(end, SIM_EVENT) ? elapsed(start, end, milliseconds)
							       : CUDA_ERROR_INVALID_HANDLE);
}

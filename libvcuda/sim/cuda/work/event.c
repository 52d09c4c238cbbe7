/*
 * Events as objects: their moments, and what they hold. A record makes a new moment, which the stream reaches in its
 * order; the event points to the last one. The calls are in cuda/work/event_call.c.
 */
#include <stdlib.h>

#include "cuda/work/shared_event.h"
#include "cuda/work/stream.h"

void sim_event_moment_drop(struct sim_moment *moment)
{
	if (moment && --moment->references == 0)
		free(moment);
}

CUevent sim_event_new(struct sim_context *context)
{
	pthread_mutex_lock(&sim_driver.lock);
	CUevent event = sim_object_create(sizeof *event, SIM_EVENT, context);
	if (event)
		event->flags = CU_EVENT_DISABLE_TIMING;
	pthread_mutex_unlock(&sim_driver.lock);
	return event;
}

/* Frees what the event holds. */
static void let_go_of(struct sim_event *event)
{
	sim_event_moment_drop(event->moment);
	sim_shared_event_drop(event->shared);
}

void sim_event_drop_all(struct sim_context *context)
{
	for (struct sim_object *object = context->objects; object; object = object->next)
		if (object->kind == SIM_EVENT)
			let_go_of((struct sim_event *)object);
}

CUresult sim_event_destroy(CUevent event)
{
	TRY(sim_object_lock(event, SIM_EVENT));
	let_go_of(event);
	sim_object_destroy(event);
	return sim_object_unlock(CUDA_SUCCESS);
}

/* Gives the event a new moment, which the work shares. Under the lock. */
CUresult sim_event_renew(struct sim_event *event, struct sim_work *work)
{
	struct sim_moment *moment = calloc(1, sizeof *moment);

	if (!moment)
		return CUDA_ERROR_OUT_OF_MEMORY;
	moment->references = 2;
	sim_event_moment_drop(event->moment);
	event->moment = moment;
	event->place.id = 0;
	work->moment = moment;
	return CUDA_SUCCESS;
}

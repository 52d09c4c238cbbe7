/* See compute/card_clock.h. */
#include "compute/card_clock.h"

#include "driver/cuda_table.h"
#include "driver/stream_capture.h"

#define BASE_AGE NS_PER_S               /* times are float milliseconds: exact to 61 ns at one second */
#define DRIFT 100000                    /* 10 ppm between the clocks */

static void more_events(struct compute_context *context)
{
	for (int i = 0; i < EVENTS_AT_ONCE && context->event_total < 2 * BATCHES; i++) {
		CUevent event;
		if (REAL(cuEventCreate, &event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
			return;
		context->events[context->event_count++] = event;
		context->event_total++;
	}
}

static CUevent take_event(struct compute_context *context)
{
	if (!context->event_count && context->event_total < 2 * BATCHES)
		more_events(context);
	return context->event_count ? context->events[--context->event_count] : NULL;
}

void card_clock_put_event(struct compute_context *context, CUevent event)
{
	if (event && event != context->base)
		context->events[context->event_count++] = event;
}

CUevent card_clock_record(struct compute_context *context, CUstream stream)
{
	/* An event of a graph must not be queried. */
	CUevent event = stream_capture_has(stream) ? NULL : take_event(context);

	if (!event)
		return NULL;
	if (REAL(cuEventRecord, event, stream) == CUDA_SUCCESS)
		return event;
	card_clock_put_event(context, event);
	return NULL;
}

uint64_t card_clock_time_of(struct compute_context *context, CUevent event, uint64_t recorded, uint64_t now)
{
	float milliseconds;

	if (!context->base) {
		context->base = event;
		context->base_at = recorded;
		context->base_seen = now;
		return recorded;
	}
	if (REAL(cuEventElapsedTime, &milliseconds, context->base, event) != CUDA_SUCCESS)
		return recorded;
	int64_t since = (int64_t)((double)milliseconds * 1e6);
	if ((int64_t)context->base_at + since < (int64_t)recorded)
		context->base_at = recorded - (uint64_t)since;
	if ((int64_t)context->base_at + since > (int64_t)now)
		context->base_at = now - (uint64_t)since;
	return context->base_at + (uint64_t)since;
}

void card_clock_renew_base(struct compute_context *context, struct batch *batch, uint64_t now)
{
	if (now - context->base_seen < BASE_AGE || !batch->start || batch->start == context->base || !batch->started)
		return;
	CUevent old = context->base;
	context->base_at = batch->started_at - (now - context->base_seen) / DRIFT;
	context->base_seen = now;
	context->base = batch->start;
	context->events[context->event_count++] = old;
	batch->start = NULL;
}

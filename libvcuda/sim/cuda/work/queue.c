/*
 * The queues of the streams: submitting work to a stream, or to the graph that the stream is capturing, and waiting for
 * it. cuda/work/engine.c decides when work begins and ends, cuda/work/finish.c carries it out and ends it.
 */
#include "cuda/work/queue.h"

#include <stdlib.h>

#include "state/clock.h"

#define RUN_AHEAD 1024u /* launches that a stream holds; the next one blocks */

/* Checks the work's event. If a wait for it makes the stream join a capture, the stream joins. Under the lock. */
static CUresult check_event(struct sim_stream *stream, const struct sim_work *work)
{
	if (work->type != CU_GRAPH_NODE_TYPE_EVENT_RECORD && work->type != CU_GRAPH_NODE_TYPE_WAIT_EVENT)
		return CUDA_SUCCESS;
	if (!sim_object_is(work->event, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && work->event->place.id && !stream->place.capture) {
		if (stream->is_legacy)
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		sim_capture_join(&stream->place, &work->event->place);
	}
	return CUDA_SUCCESS;
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

static CUresult append(struct sim_engine *engine, struct sim_stream *stream, const struct sim_work *template)
{
	struct sim_work *work = malloc(sizeof *work);

	if (!work || !sim_engine_start(engine)) {
		free(work);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*work = *template;
	work->submitted = sim_clock_now();
	work->sequence = ++engine->sequence;
	work->remaining = work->duration;
	if (stream->tail)
		stream->tail->next = work;
	else
		stream->head = work;
	stream->tail = work;
	stream->launches += work->share != 0;
	engine->pending++;
	if (stream->head == work || engine->waiting)
		sim_engines_wake(engine);
	return CUDA_SUCCESS;
}

/*
 * Carries out work without queueing it. Nothing else is in progress, so the order is kept. Under the lock, which is
 * released while the work is carried out.
 */
static CUresult perform_at_once(struct sim_engine *engine, struct sim_stream *stream, struct sim_work *work)
{
	if (work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
		work->moment->reached = true;
		work->moment->time = stream->last_end = sim_clock_now();
		sim_engines_wake_all();
		sim_event_moment_drop(work->moment);
		return CUDA_SUCCESS;
	}
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
		sim_event_moment_drop(work->moment);
		return CUDA_SUCCESS;
	}
	(void)engine;
	pthread_mutex_unlock(&sim_driver.lock);
	sim_clock_pay(0);
	uint64_t end = sim_clock_now() + work->duration;
	sim_finish_perform(work);
	if (work->duration > 20000)
		sim_clock_sleep_until(end);
	else
		sim_clock_pay(work->duration);
	pthread_mutex_lock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

static bool can_be_done_at_once(const struct sim_engine *engine, const struct sim_work *work, bool wait)
{
	if (engine->pending)
		return false;
	bool needs_turn = sim_state_header()->event_turn;
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return !needs_turn;
	case CU_GRAPH_NODE_TYPE_MEM_FREE: return true;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return !work->moment || (work->moment->reached && !needs_turn);
	case CU_GRAPH_NODE_TYPE_MEMCPY: return wait && !work->share && !sim_state_header()->shared_copies;
	default: return wait && !work->share;
	}
}

/* The card's multiprocessors carry out fills and copies within a card, and have no room for other work meanwhile. */
static unsigned share_of_work(const struct sim_work *work)
{
	if (work->type == CU_GRAPH_NODE_TYPE_MEMSET ||
	    (work->type == CU_GRAPH_NODE_TYPE_MEMCPY && work->copy.is_within))
		return SIM_WHOLE_CARD;
	return work->share;
}

static CUresult enqueue(struct sim_stream *stream, struct sim_work *work, bool wait)
{
	struct sim_context *context = stream->object.context;
	struct sim_engine *engine = stream->engine;

	sim_driver.settle = sim_queue_settle;
	TRY(bind_event(work));
	work->context = context;
	work->share = share_of_work(work);
	if (can_be_done_at_once(engine, work, wait))
		return perform_at_once(engine, stream, work);
	while (work->share && stream->launches >= RUN_AHEAD) {
		sim_engines_wait(engine);
		if (!context->alive)
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	CUresult result = append(engine, stream, work);
	uint64_t sequence = engine->sequence;
	while (result == CUDA_SUCCESS && wait && sim_object_is(stream, SIM_STREAM) && stream->head &&
	       stream->head->sequence <= sequence)
		sim_engines_wait(engine);
	return result;
}

CUresult sim_queue_submit(CUstream handle, const struct sim_work *submitted, bool wait)
{
	struct sim_work work = *submitted;
	struct sim_stream *stream;

	sim_clock_enter();
	TRY(sim_stream_lock(handle, &stream));
	CUresult result = check_event(stream, &work);
	if (result != CUDA_SUCCESS)
		;
	else if (!stream->place.capture)
		result = enqueue(stream, &work, wait);
	else if (wait)
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	else
		result = capture(stream, &work);
	return sim_object_unlock(result);
}

void sim_queue_drain(struct sim_context *context)
{
	struct sim_engine *engine = context->engine;

	while (engine && engine->pending)
		sim_engines_wait(engine);
	if (engine && engine->is_running)
		sim_engines_wake(engine);
}

/* Waits until all work that was submitted before is done. */
static void settle(struct sim_engine *engine)
{
	uint64_t sequence = engine->sequence;

	for (struct sim_stream *at = engine->streams; at;) {
		bool busy = at->head && at->head->sequence <= sequence;
		if (busy)
			sim_engines_wait(engine);
		at = busy ? engine->streams : at->next; /* streams may have been destroyed meanwhile */
	}
}

/* A green context uses the memory of the context beside which it was made, and the other way round. */
static bool may_use(const struct sim_engine *engine, const struct sim_context *context)
{
	const struct sim_context *user = engine->context;

	return engine->pending && (!context || user == context ||
				   (user->device == context->device && (user->sm_count || context->sm_count)));
}

static struct sim_engine *next_user(const struct sim_context *context, struct sim_engine *engine)
{
	while (engine && !may_use(engine, context))
		engine = engine->next;
	return engine;
}

void sim_queue_settle(const struct sim_context *context)
{
	struct sim_engine *engine;

	if (sim_engine_is_this() || !next_user(context, sim_engines_first()))
		return;
	pthread_mutex_unlock(&sim_driver.lock);
	sim_clock_pay(SIM_COST_SYNCHRONIZE);
	pthread_mutex_lock(&sim_driver.lock);
	for (engine = next_user(context, sim_engines_first()); engine; engine = next_user(context, engine->next))
		settle(engine);
}

void sim_queue_forget_all(struct sim_context *context)
{
	while (context->engine && context->engine->streams) {
		sim_capture_forget(&context->engine->streams->place);
		sim_finish_stream(context->engine->streams);
	}
}

CUresult sim_queue_wait_moment(struct sim_moment *moment)
{
	struct sim_engine *first = sim_engines_first();

	moment->references++;
	/* The engine that reaches the moment wakes all engines. */
	while (first && !moment->reached) {
		for (struct sim_engine *engine = first; engine; engine = engine->next)
			engine->waiting++, sim_engines_wake(engine);
		sim_clock_wait(&first->progress, &sim_driver.lock, SIM_NEVER);
		for (struct sim_engine *engine = first; engine; engine = engine->next)
			engine->waiting -= engine->waiting > 0;
	}
	sim_event_moment_drop(moment);
	return CUDA_SUCCESS;
}

static CUresult check_capture(const struct sim_stream *stream)
{
	return stream->place.capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* Whether earlier work is done: the stream's own, and for the default stream that of all blocking streams. */
static bool is_done(const struct sim_stream *stream, uint64_t sequence)
{
	if (!stream->is_legacy)
		return !stream->head || stream->head->sequence > sequence;
	for (const struct sim_stream *other = stream->engine->streams; other; other = other->next)
		if (!(other->flags & SIM_STREAM_NON_BLOCKING) && other->head && other->head->sequence <= sequence)
			return false;
	return true;
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
	struct sim_stream *stream;

	sim_clock_pay(SIM_COST_SYNCHRONIZE);

	TRY(sim_stream_lock(handle, &stream));
	CUresult result = check_capture(stream);
	uint64_t sequence = stream->engine->sequence;
	struct sim_engine *engine = stream->engine;
	while (result == CUDA_SUCCESS && sim_object_is(stream, SIM_STREAM) && !is_done(stream, sequence))
		sim_engines_wait(engine);
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuStreamQuery(CUstream handle)
{
	struct sim_stream *stream;
	CUresult result;

	sim_clock_charge(SIM_COST_QUERY);
	TRY(sim_stream_lock(handle, &stream));
	result = check_capture(stream);
	if (result == CUDA_SUCCESS && !is_done(stream, stream->engine->sequence))
		result = CUDA_ERROR_NOT_READY;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuCtxSynchronize(void)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	sim_clock_pay(SIM_COST_SYNCHRONIZE);
	pthread_mutex_lock(&sim_driver.lock);
	if (context->engine)
		settle(context->engine);
	return sim_object_unlock(CUDA_SUCCESS);
}

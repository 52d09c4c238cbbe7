/*
 * Streams: their handles, the built-in streams, and their properties. Their queues are in cuda/work/queue.c; captures
 * are in cuda/work/capture.c; waiting for a value is in cuda/work/watch.c.
 */
#include <stdlib.h>

#include "cuda/work/queue.h"

#define GREATEST_PRIORITY (-5)

/* A thread's own stream in each context that it used. If the stream ended with its context, a new one is made. */
static _Thread_local struct {
	struct sim_context *context;
	struct sim_stream *stream;
} own_streams[SIM_MAX_CARDS];
static _Thread_local unsigned last_own;

static struct sim_stream *create_stream(struct sim_context *context, unsigned flags, int priority)
{
	struct sim_engine *engine = sim_engines_of(context);
	struct sim_stream *stream = engine ? sim_object_create(sizeof *stream, SIM_STREAM, context) : NULL;

	if (!stream)
		return NULL;
	stream->engine = engine;
	stream->next = engine->streams;
	engine->streams = stream;
	stream->turn = ++engine->begun;
	stream->flags = flags;
	stream->priority = priority > 0 ? 0 : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
	return stream;
}

static bool is_of(struct sim_stream *stream, const struct sim_context *context)
{
	return sim_object_is(stream, SIM_STREAM) && stream->object.context == context;
}

static struct sim_stream *legacy_stream(struct sim_context *context)
{
	if (!is_of(context->legacy, context)) {
		context->legacy = create_stream(context, 0, 0);
		if (context->legacy)
			context->legacy->is_legacy = true;
	}
	return context->legacy;
}

static struct sim_stream *own_stream(struct sim_context *context)
{
	for (unsigned i = 0; i < SIM_MAX_CARDS; i++)
		if (own_streams[i].context == context && is_of(own_streams[i].stream, context) &&
		    own_streams[i].stream->owner == &own_streams[i]) /* else another stream lies there now */
			return own_streams[i].stream;
	unsigned place = last_own++ % SIM_MAX_CARDS;
	own_streams[place].context = context;
	own_streams[place].stream = create_stream(context, 0, 0);
	if (own_streams[place].stream)
		own_streams[place].stream->owner = &own_streams[place];
	return own_streams[place].stream;
}

CUresult sim_stream_lock(CUstream handle, struct sim_stream **stream)
{
	struct sim_context *context;

	*stream = handle;
	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
		return sim_object_lock(handle, SIM_STREAM);
	TRY(sim_context_current(&context));
	pthread_mutex_lock(&sim_driver.lock);
	*stream = handle == CU_STREAM_PER_THREAD ? own_stream(context) : legacy_stream(context);
	if (*stream)
		return CUDA_SUCCESS;
	return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult sim_stream_check(CUstream handle)
{
	struct sim_stream *stream;

	TRY(sim_stream_lock(handle, &stream));
	return sim_object_unlock(CUDA_SUCCESS);
}

CUresult sim_stream_context(CUstream handle, struct sim_context **context)
{
	struct sim_stream *stream;

	TRY(sim_stream_lock(handle, &stream));
	*context = stream->object.context;
	return sim_object_unlock(CUDA_SUCCESS);
}

CUresult sim_stream_lock_place(CUstream handle, struct sim_place **place)
{
	struct sim_stream *stream;

	TRY(sim_stream_lock(handle, &stream));
	if (stream->is_legacy) {
		return sim_object_unlock(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	}
	*place = &stream->place;
	return CUDA_SUCCESS;
}

bool sim_stream_is_legacy(CUstream handle)
{
	return !handle || handle == CU_STREAM_LEGACY;
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!stream || flags & ~SIM_STREAM_NON_BLOCKING);
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = CUDA_SUCCESS;
	if (context->streams == context->most_streams)
		result = sim_context_take(context, sim_state_header()->stream_bytes);
	*stream = result == CUDA_SUCCESS ? create_stream(context, flags, priority) : NULL;
	if (!*stream)
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (context->streams++ == context->most_streams)
		context->most_streams++;
	return sim_object_unlock(CUDA_SUCCESS);
}

CUstream sim_stream_new(struct sim_context *context, CUstream like)
{
	pthread_mutex_lock(&sim_driver.lock);
	int priority = sim_object_is(like, SIM_STREAM) ? like->priority : 0;
	CUstream stream = context->alive ? create_stream(context, SIM_STREAM_NON_BLOCKING, priority) : NULL;
	pthread_mutex_unlock(&sim_driver.lock);
	return stream;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (least)
		*least = 0;
	if (greatest)
		*greatest = GREATEST_PRIORITY;
	return CUDA_SUCCESS;
}

/* Work that the stream still holds is carried out. */
SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	TRY(sim_object_lock(stream, SIM_STREAM));
	if (stream->object.context->streams)
		stream->object.context->streams--;
	sim_capture_forget(&stream->place);
	sim_finish_stream(stream);
	return sim_object_unlock(CUDA_SUCCESS);
}

static CUresult stream_property(CUstream handle, int *priority, unsigned *flags, CUcontext *context)
{
	struct sim_stream *stream;

	REJECT(!priority && !flags && !context);
	TRY(sim_stream_lock(handle, &stream));
	if (priority)
		*priority = stream->priority;
	if (flags)
		*flags = stream->flags;
	if (context)
		*context = stream->object.context;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	return stream_property(stream, priority, NULL, NULL);
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	return stream_property(stream, NULL, flags, NULL);
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	return stream_property(stream, NULL, NULL, context);
}

SIM_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	TRY(id ? sim_stream_check(stream) : CUDA_ERROR_INVALID_VALUE);
	*id = (unsigned long long)(uintptr_t)stream;
	return CUDA_SUCCESS;
}

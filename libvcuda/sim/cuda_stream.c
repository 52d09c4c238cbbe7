/* Streams and events. Work is done when submitted: a stream is always idle, an event is reached when recorded. */
#include <time.h>

#include "cuda_sim.h"

struct sim_stream {
	struct sim_object object;
	unsigned flags;
	int priority;
};

struct sim_event {
	struct sim_object object;
	unsigned flags;
	uint64_t recorded; /* ns, CLOCK_MONOTONIC; 0: never */
};

#define GREATEST_PRIORITY (-5)
#define STREAM_NON_BLOCKING 1u
#define EVENT_FLAGS 7u

static bool is_built_in(CUstream stream)
{
	return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* Lock, and check the stream. A built-in one needs a current context, another one brings its own. */
static CUresult lock_stream(CUstream stream)
{
	struct sim_context *context;

	if (!is_built_in(stream))
		return sim_lock_object(stream, SIM_STREAM);
	CUresult result = sim_current(&context);
	if (result == CUDA_SUCCESS)
		pthread_mutex_lock(&sim_driver.lock);
	return result;
}

CUresult sim_check_stream(CUstream stream)
{
	CUresult result = lock_stream(stream);

	if (result == CUDA_SUCCESS)
		pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!stream || flags & ~STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	*stream = sim_object_create(sizeof **stream, SIM_STREAM, context);
	if (*stream) {
		(*stream)->flags = flags;
		(*stream)->priority = priority > 0 ? 0 : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	CUresult result = sim_lock_object(stream, SIM_STREAM);

	if (result != CUDA_SUCCESS)
		return result;
	sim_object_destroy(stream);
	pthread_mutex_unlock(&sim_driver.lock);
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

static CUresult stream_property(CUstream stream, int *priority, unsigned *flags, CUcontext *context)
{
	struct sim_context *current = NULL;

	if (!priority && !flags && !context)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_built_in(stream)) {
		CUresult result = sim_current(&current);
		if (result != CUDA_SUCCESS)
			return result;
	}
	CUresult result = lock_stream(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (priority)
		*priority = current ? 0 : stream->priority;
	if (flags)
		*flags = current ? 0 : stream->flags;
	if (context)
		*context = current ? current : stream->object.context;
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
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

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = 0;
	return sim_check_stream(stream);
}

static CUresult check_event(CUevent event)
{
	CUresult result = sim_lock_object(event, SIM_EVENT);

	if (result == CUDA_SUCCESS)
		pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	CUresult result = sim_check_stream(stream);

	if (result != CUDA_SUCCESS)
		return result;
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : check_event(event);
}

SIM_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!event || flags & ~EVENT_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	*event = sim_object_create(sizeof **event, SIM_EVENT, context);
	if (*event)
		(*event)->flags = flags;
	pthread_mutex_unlock(&sim_driver.lock);
	return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
	CUresult result = sim_lock_object(event, SIM_EVENT);

	if (result != CUDA_SUCCESS)
		return result;
	sim_object_destroy(event);
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
	CUresult result = sim_check_stream(stream);

	if (result == CUDA_SUCCESS)
		result = sim_lock_object(event, SIM_EVENT);
	if (result != CUDA_SUCCESS)
		return result;
	event->recorded = now();
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream);
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent event)
{
	return check_event(event);
}

SIM_EXPORT CUresult cuEventQuery(CUevent event)
{
	return check_event(event);
}

static CUresult elapsed(const struct sim_event *start, const struct sim_event *end, float *milliseconds)
{
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	*milliseconds = (float)((double)(int64_t)(end->recorded - start->recorded) / 1e6);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(start, SIM_EVENT);
	if (result != CUDA_SUCCESS)
		return result;
	result = sim_object_is(end, SIM_EVENT) ? elapsed(start, end, milliseconds) : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

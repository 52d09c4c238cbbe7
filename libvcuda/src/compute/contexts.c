/* See compute/contexts.h. */
#include "compute/contexts.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "shared/device_limits.h"

struct core_context *_Atomic core_contexts[MOST_CONTEXTS];
_Atomic uint32_t core_generation = 1;

static atomic_flag making = ATOMIC_FLAG_INIT;

struct core_context *core_context_find(CUcontext handle)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct core_context *context = atomic_load_explicit(&core_contexts[i], memory_order_acquire);
		if (context && context->handle == handle)
			return context;
	}
	return NULL;
}

/* Returns an unused record. The record of a destroyed context is used again. */
static struct core_context *blank(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct core_context *context = atomic_load(&core_contexts[i]);
		if (context && context->handle)
			continue;
		if (!context)
			context = calloc(1, sizeof(*context));
		atomic_store_explicit(&core_contexts[i], context, memory_order_release);
		return context;
	}
	log_once(LOG_WARNING, "more than %d contexts exist; the core share does not limit the others", MOST_CONTEXTS);
	return NULL;
}

static struct core_context *add(CUcontext handle)
{
	struct bucket *bucket;
	CUdevice device;

	if (!current_device(&device) || !(bucket = bucket_of_device(device)))
		return NULL;
	enter(&making);
	struct core_context *context = core_context_find(handle);
	if (!context && (context = blank())) {
		memset(context, 0, sizeof(*context));
		for (int i = 0; i < LANES; i++)
			context->lanes[i].open = -1;
		context->device = device;
		context->bucket = bucket;
		__atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
	}
	leave(&making);
	return context;
}

struct core_context *batches_context(struct this_thread *thread)
{
	uint32_t now = atomic_load_explicit(&core_generation, memory_order_acquire);
	CUcontext handle = NULL;

	if (REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return NULL;
	if (thread->handle == handle && thread->generation == now)
		return thread->context;
	thread->context = core_context_find(handle);
	if (!thread->context)
		thread->context = add(handle);
	thread->handle = handle;
	thread->generation = now;
	return thread->context;
}

struct bucket *batches_bucket(struct core_context *context)
{
	return context->bucket;
}

unsigned int batches_contexts(void)
{
	unsigned int count = 0;

	while (count < MOST_CONTEXTS && atomic_load_explicit(&core_contexts[count], memory_order_relaxed))
		count++;
	return count;
}

struct core_context *batches_hold(CUcontext handle)
{
	struct core_context *context = handle ? core_context_find(handle) : NULL;

	if (context)
		enter(&context->lock);
	return context;
}

void core_contexts_reset(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++)
		atomic_store(&core_contexts[i], NULL);
	atomic_fetch_add(&core_generation, 1);
	atomic_flag_clear(&making);
}

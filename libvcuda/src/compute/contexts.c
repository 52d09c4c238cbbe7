/* See compute/contexts.h. */
#include "compute/contexts.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "shared/device_limits.h"

struct compute_context *_Atomic contexts[MOST_CONTEXTS] __attribute__((aligned(64)));
_Atomic uint32_t contexts_generation = 1;

static atomic_flag making = ATOMIC_FLAG_INIT;

static struct compute_context *find_context(CUcontext handle)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct compute_context *context = atomic_load_explicit(&contexts[i], memory_order_acquire);
		if (context && context->handle == handle)
			return context;
	}
	return NULL;
}

static void clear(struct compute_context *context)
{
	uint64_t orders = context->orders;
	uint32_t *words = context->semaphores;

	memset(context, 0, sizeof(*context));
	context->orders = orders;
	context->semaphores = words;
}

/* Returns an unused record. The record of a destroyed context is used again; a new one is zero until its pages are used. */
static struct compute_context *blank(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct compute_context *context = atomic_load(&contexts[i]);
		if (context && context->handle)
			continue;
		if (context)
			clear(context);
		else
			context = calloc(1, sizeof(*context));
		atomic_store_explicit(&contexts[i], context, memory_order_release);
		return context;
	}
	log_once(LOG_WARNING, "more than %d contexts exist; the core share does not limit the others", MOST_CONTEXTS);
	return NULL;
}

static struct compute_context *add_context(CUcontext handle)
{
	struct token_bucket *bucket;
	CUdevice device;

	if (!device_limits_current_device(&device) || !(bucket = token_bucket_of_device(device)))
		return NULL;
	contexts_lock(&making);
	struct compute_context *context = find_context(handle);
	if (!context && (context = blank())) {
		for (int i = 0; i < STREAM_SLOTS; i++)
			context->slots[i].open = -1;
		context->device = device;
		context->bucket = bucket;
		__atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
	}
	contexts_unlock(&making);
	return context;
}

struct compute_context *contexts_current(struct guard_thread *thread)
{
	uint32_t now = atomic_load_explicit(&contexts_generation, memory_order_acquire);
	CUcontext handle = NULL;

	if (REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return NULL;
	if (thread->handle == handle && thread->generation == now)
		return thread->context;
	thread->context = find_context(handle);
	if (!thread->context)
		thread->context = add_context(handle);
	thread->handle = handle;
	thread->generation = now;
	return thread->context;
}

struct compute_context *contexts_current_if_any(struct guard_thread *thread)
{
	return atomic_load(&contexts[0]) ? contexts_current(thread) : NULL;
}

struct compute_context *contexts_hold(CUcontext handle)
{
	struct compute_context *context = handle ? find_context(handle) : NULL;

	if (context)
		contexts_lock(&context->lock);
	return context;
}

void contexts_reset(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++)
		atomic_store(&contexts[i], NULL);
	atomic_fetch_add(&contexts_generation, 1);
	atomic_flag_clear(&making);
}

/*
 * Contexts: each thread's stack of current contexts, primary contexts, creation and destruction, limits, and access to
 * peers. A process' first context on a card is charged to the ledger. Settings without an effect here are the
 * ACCEPTED lines of cuda/entry/entries.def.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/base/context.h"
#include "state/clock.h"

static const size_t default_limits[SIM_LIMITS] = {
	[CU_LIMIT_STACK_SIZE] = 1024,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128,
};

static _Thread_local struct {
	struct sim_context *contexts[SIM_STACK_DEPTH];
	unsigned depth;
} stack;

static pthread_cond_t has_ended; /* a context */

__attribute__((constructor)) static void make_condition(void)
{
	sim_clock_condition_init(&has_ended);
}

/* Contexts are never freed, only marked dead: another thread's stack may still hold one. */
static struct {
	struct sim_context **list;
	size_t count, room;
} known;

static bool is_known_context(const struct sim_context *context)
{
	for (size_t i = 0; i < known.count; i++)
		if (known.list[i] == context)
			return true;
	return false;
}

static CUresult check_context(const struct sim_context *context)
{
	if (!is_known_context(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static struct sim_context *top(void)
{
	return stack.depth ? stack.contexts[stack.depth - 1] : NULL;
}

CUresult sim_context_current(struct sim_context **context)
{
	TRY(sim_init_ready());
	*context = top();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (sim_state_gone(sim_driver.devices[(*context)->device].card))
		return sim_init_result(SIM_LOST);
	return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static bool has_live_context(CUdevice device)
{
	for (size_t i = 0; i < known.count; i++)
		if (known.list[i]->alive && known.list[i]->device == device)
			return true;
	return false;
}

static struct sim_context *remember_context(struct sim_context *context)
{
	if (context && known.count == known.room) {
		size_t room = known.room ? known.room * 2 : 16;
		struct sim_context **list = reallocarray(known.list, room, sizeof *list);
		if (!list) {
			free(context);
			return NULL;
		}
		known.list = list;
		known.room = room;
	}
	if (context)
		known.list[known.count++] = context;
	return context;
}

static CUresult revive(struct sim_context *context, unsigned flags)
{
	TRY(sim_init_result(sim_ledger_attach(sim_driver.devices[context->device].card)));
	context->flags = flags;
	memcpy(context->limits, default_limits, sizeof default_limits);
	context->peers = 0;
	context->extra = 0;
	context->streams = context->most_streams = 0;
	context->alive = true;
	return CUDA_SUCCESS;
}

static void end(struct sim_context *context)
{
	context->alive = false;
	context->is_ending = true;
	for (size_t i = 0; sim_context_ends[i]; i++)
		sim_context_ends[i](context);
	context->is_ending = false;
	sim_clock_signal(&has_ended);
	bool is_last = !has_live_context(context->device);
	for (size_t i = 0; is_last && sim_context_last_ends[i]; i++)
		sim_context_last_ends[i](context->device);
	sim_ledger_release(sim_driver.devices[context->device].card, context->extra);
	sim_ledger_detach(sim_driver.devices[context->device].card, is_last);
}

static CUresult create_context(struct sim_context **out, CUdevice device, unsigned flags, unsigned version,
			       bool primary)
{
	struct sim_context *context = remember_context(calloc(1, sizeof *context));

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->device = device;
	context->version = version;
	context->primary = primary;
	CUresult result = revive(context, flags);
	if (result != CUDA_SUCCESS) {
		known.count--; /* no other code has seen it */
		free(context);
		return result;
	}
	*out = context;
	return CUDA_SUCCESS;
}

/* Before the driver's lock is taken, and after it: a context in the making keeps no other call of the process. */
static void take_half_of_its_time(bool is_made)
{
	uint64_t half = sim_state_header()->context_ms * UINT64_C(500000);

	if (is_made && half)
		sim_clock_sleep_until(sim_clock_now() + half);
}

static CUresult create_current(CUcontext *out, unsigned flags, CUdevice device, unsigned version)
{
	TRY(sim_device(device));
	REJECT(!out || flags & ~CU_CTX_FLAGS_MASK);
	if (stack.depth == SIM_STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	take_half_of_its_time(true);
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = create_context(out, device, flags, version, false);
	pthread_mutex_unlock(&sim_driver.lock);
	take_half_of_its_time(result == CUDA_SUCCESS);
	if (result == CUDA_SUCCESS)
		stack.contexts[stack.depth++] = *out;
	return result;
}

SIM_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	return create_current(context, flags, device, 3020);
}

SIM_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
	if (count != 0 && affinity)
		return CUDA_ERROR_NOT_SUPPORTED; /* execution affinity is for MPS */
	return create_current(context, flags, device, 3020);
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = check_context(context);
	if (result == CUDA_SUCCESS && context->primary)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (result == CUDA_SUCCESS)
		end(context);
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS && top() == context)
		stack.depth--;
	return result;
}

CUresult sim_context_check(CUcontext context)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	return sim_object_unlock(check_context(context));
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	TRY(sim_context_check(context));
	if (stack.depth == SIM_STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	TRY(sim_init_ready());
	if (!stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack.depth--;
	if (context)
		*context = stack.contexts[stack.depth];
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
	TRY(context ? sim_context_check(context) : sim_init_ready());
	if (stack.depth)
		stack.depth--;
	if (context)
		stack.contexts[stack.depth++] = context;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	TRY(sim_init_ready());
	REJECT(!context);
	*context = top();
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!device);
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!flags);
	*flags = context->flags;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	struct sim_context *current;

	TRY(context ? sim_context_check(context) : sim_context_current(&current));
	REJECT(!version);
	*version = (context ? context : current)->version;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!value);
	if (limit < 0 || limit >= SIM_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

CUresult sim_context_take(struct sim_context *context, uint64_t bytes)
{
	TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[context->device].card, bytes)));
	context->extra += bytes;
	return CUDA_SUCCESS;
}

/* The card has stacks for all threads that it can run. The context has those of the default size from the beginning. */
static uint64_t stack_bytes(const struct sim_context *context, size_t size)
{
	const struct sim_card *card = sim_device_card(context->device);
	size_t least = default_limits[CU_LIMIT_STACK_SIZE];

	if (!sim_state_header()->stacks || size <= least)
		return 0;
	return (uint64_t)card->sm_count * sim_attribute_threads_per_sm(card) * (size - least);
}

static CUresult resize_stacks(struct sim_context *context, size_t size)
{
	uint64_t before = stack_bytes(context, context->limits[CU_LIMIT_STACK_SIZE]);
	uint64_t after = stack_bytes(context, size);

	if (after > before)
		return sim_context_take(context, after - before);
	sim_ledger_release(sim_driver.devices[context->device].card, before - after);
	context->extra -= before - after;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (limit < 0 || limit >= SIM_LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = limit == CU_LIMIT_STACK_SIZE ? resize_stacks(context, value) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		context->limits[limit] = value;
	return sim_object_unlock(result);
}

static CUresult set_peer(CUcontext peer, bool enable)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	TRY(sim_context_check(peer));
	uint32_t bit = 1u << peer->device;
	if (!enable && !(context->peers & bit))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	if (enable && context->peers & bit)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	if (enable && peer->device == context->device)
		return CUDA_ERROR_INVALID_DEVICE;
	context->peers ^= bit;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : set_peer(peer, true);
}

SIM_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	return set_peer(peer, false);
}

static bool has_primary(const struct sim_device *device)
{
	pthread_mutex_lock(&sim_driver.lock);
	bool has = device->primary && device->primary->alive;
	pthread_mutex_unlock(&sim_driver.lock);
	return has;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice number)
{
	CUresult result = CUDA_SUCCESS;

	TRY(sim_device(number));
	REJECT(!out);
	struct sim_device *device = &sim_driver.devices[number];
	bool is_made = !has_primary(device);
	take_half_of_its_time(is_made);
	pthread_mutex_lock(&sim_driver.lock);
	while (device->primary && device->primary->is_ending)
		sim_clock_wait(&has_ended, &sim_driver.lock, SIM_NEVER);
	if (!device->primary)
		result = create_context(&device->primary, number, device->primary_flags, 3020, true);
	else if (!device->primary->alive)
		result = revive(device->primary, device->primary_flags);
	if (result == CUDA_SUCCESS) {
		device->retained++;
		*out = device->primary;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	take_half_of_its_time(is_made && result == CUDA_SUCCESS);
	return result;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number)
{
	CUresult result = CUDA_SUCCESS;

	TRY(sim_device(number));
	struct sim_device *device = &sim_driver.devices[number];
	pthread_mutex_lock(&sim_driver.lock);
	if (device->retained == 0)
		result = CUDA_ERROR_INVALID_CONTEXT;
	else if (--device->retained == 0 && device->primary->alive)
		end(device->primary);
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice number)
{
	TRY(sim_device(number));
	struct sim_device *device = &sim_driver.devices[number];
	pthread_mutex_lock(&sim_driver.lock);
	if (device->primary && device->primary->alive)
		end(device->primary);
	device->retained = 0;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice number, unsigned flags)
{
	TRY(sim_device(number));
	REJECT(flags & ~CU_CTX_FLAGS_MASK);
	struct sim_device *device = &sim_driver.devices[number];
	pthread_mutex_lock(&sim_driver.lock);
	device->primary_flags = flags;
	if (device->primary)
		device->primary->flags = flags;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned *flags, int *active)
{
	TRY(sim_device(number));
	REJECT(!flags || !active);
	const struct sim_device *device = &sim_driver.devices[number];
	pthread_mutex_lock(&sim_driver.lock);
	*flags = device->primary_flags;
	*active = device->primary && device->primary->alive;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* The interface before primary contexts: each attach needs a detach, and the last detach destroys the context. */
SIM_EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!out || flags);
	pthread_mutex_lock(&sim_driver.lock);
	context->attached++;
	pthread_mutex_unlock(&sim_driver.lock);
	*out = context;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxDetach(CUcontext context)
{
	struct sim_context *current;

	TRY(sim_context_current(&current));
	if (current != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sim_driver.lock);
	bool is_last = context->attached == 0;
	context->attached -= !is_last;
	pthread_mutex_unlock(&sim_driver.lock);
	return is_last ? cuCtxDestroy_v2(context) : CUDA_SUCCESS;
}

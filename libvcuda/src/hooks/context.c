/*
 * The wrappers of libcuda.so.1 that create and destroy contexts and that load code. driver/cuda_table.h lists all
 * wrappers.
 *
 * What these calls take of a card without an allocating call is charged as overhead (memory/context_overhead.h). When
 * a context is destroyed, its charges are given back and its batches end. Memory that a program allocates is charged
 * in the other files of this folder.
 */
#include "compute/batch_complete.h"
#include "compute/held.h"
#include "driver/cuda_table.h"
#include "memory/calls.h"
#include "memory/charge.h"
#include "memory/context_lock.h"
#include "memory/context_overhead.h"
#include "memory/first_uses.h"
#include "memory/pools.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

/* ---- creating contexts ---- */

/* An error: the container has no room for the context, or no right to the device. The driver must not be called. */
static CUresult begin_context(CUdevice device, struct context_booking *booking)
{
	if (device_limits_is_foreign(device))
		return CUDA_ERROR_NOT_PERMITTED;
	return context_overhead_begin(device, booking) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult before_create(CUdevice device, struct context_booking *booking)
{
	booking->card = USAGE_NO_CARD;
	if (!guard_enter())
		return CUDA_SUCCESS;
	CUresult result = begin_context(device, booking);
	guard_leave();
	return result;
}

static void destroy_context(void *context)
{
	(void)REAL(cuCtxDestroy_v2, *(CUcontext *)context);
}

static void destroy_green(void *context)
{
	(void)REAL(cuGreenCtxDestroy, *(CUgreenCtx *)context);
}

/* The context exists now, or the driver has failed. If the container has no room for it, destroys it and fails. */
static CUresult after_create(CUresult result, CUdevice device, const struct context_booking *booking,
			     void (*destroy)(void *context), void *context)
{
	bool made = result == CUDA_SUCCESS;

	if (booking->card == USAGE_NO_CARD || !guard_enter())
		return result;
	if (!context_overhead_end(device, booking, made)) {
		destroy(context);
		context_overhead_shrank(device);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guard_leave();
	return result;
}

#define CREATE(destroy, function, context, ...) \
	struct context_booking booking; \
	bool is_locked = context_lock_take(device); \
	CUresult result = before_create(device, &booking); \
	if (result == CUDA_SUCCESS) \
		result = after_create(GUARDED(REAL(function, context, __VA_ARGS__)), device, &booking, destroy, \
				      context); \
	context_lock_drop(is_locked); \
	return result

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuCtxCreate, context, flags, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuCtxCreate_v2, context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuCtxCreate_v3, context, affinities, count, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuCtxCreate_v4, context, params, flags, device);
}

EXPORT CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuGLCtxCreate, context, flags, device);
}

EXPORT CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	CREATE(destroy_context, cuGLCtxCreate_v2, context, flags, device);
}

EXPORT CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, unsigned int vdpau,
				 void *functions)
{
	CREATE(destroy_context, cuVDPAUCtxCreate, context, flags, device, vdpau, functions);
}

EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, unsigned int vdpau,
				    void *functions)
{
	CREATE(destroy_context, cuVDPAUCtxCreate_v2, context, flags, device, vdpau, functions);
}

static CUresult release_primary(CUdevice device)
{
	CUresult result = REAL(cuDevicePrimaryCtxRelease_v2, device);

	return result == CUDA_ERROR_NOT_SUPPORTED ? REAL(cuDevicePrimaryCtxRelease, device) : result;
}

static bool primary_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct context_booking booking = {.card = USAGE_NO_CARD};
	bool is_locked = context_lock_take(device), entered = guard_enter();
	bool existed = !entered || (limits_state() == LIMITS_PRESENT && primary_active(device));
	CUresult begun = existed ? CUDA_SUCCESS : begin_context(device, &booking);
	CUresult result = begun == CUDA_SUCCESS ? REAL(cuDevicePrimaryCtxRetain, context, device) : begun;

	if (begun == CUDA_SUCCESS && !existed && !context_overhead_end(device, &booking, result == CUDA_SUCCESS)) {
		(void)release_primary(device);
		context_overhead_shrank(device);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (entered)
		guard_leave();
	context_lock_drop(is_locked);
	return result;
}

/*
 * A green context keeps the device's primary context alive, so creating it may create the primary context. Destroying
 * it frees no memory of the program: that belongs to the primary context.
 */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
	CREATE(destroy_green, cuGreenCtxCreate, context, resources, device, flags);
}

/* ---- destroying contexts, and their memory with them ---- */

/* A call that may destroy a context. `device` NO_DEVICE: a later look at NVML's figure corrects the overhead. */
struct destruction {
	uint64_t serial;
	CUcontext context; /* NULL: none is destroyed, or nothing is limited */
	CUdevice device;
	struct compute_context *held;
	bool is_locked;
};

/* What is allocated from now on belongs to later contexts. The caller has the lock. */
static void before_destroy(struct destruction *call, CUcontext context)
{
	call->serial = allocations_serial();
	call->context = context;
	call->held = contexts_hold(context);
	if (call->is_locked)
		calls_begin();
}

/* `gone`: the driver has destroyed the context. */
static CUresult after_destroy(struct destruction *call, bool gone, CUresult result)
{
	batch_complete_release_context(call->held, gone);
	bool entered = call->context && gone && guard_enter();

	if (entered) {
		charge_drop_context(call->context, call->serial);
		pools_reconcile();
	}
	if (call->is_locked)
		calls_end();
	if (entered && call->device != NO_DEVICE)
		context_overhead_shrank(call->device);
	if (entered)
		guard_leave();
	context_lock_drop(call->is_locked);
	return result;
}

static CUdevice device_of(CUcontext context)
{
	CUcontext current = NULL;
	CUdevice device;

	if (limits_state() != LIMITS_PRESENT || REAL(cuCtxGetCurrent, &current) != CUDA_SUCCESS)
		return NO_DEVICE;
	if (current == context)
		return device_limits_current_device(&device) ? device : NO_DEVICE;
	if (REAL(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
		return NO_DEVICE;
	if (!device_limits_current_device(&device))
		device = NO_DEVICE;
	(void)REAL(cuCtxPopCurrent_v2, &context);
	return device;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUcontext context = NULL;
	CUdevice device =
		limits_state() == LIMITS_PRESENT && GUARDED(REAL(cuCtxFromGreenCtx, &context, green)) == CUDA_SUCCESS
			? device_of(context)
			: NO_DEVICE;
	bool is_locked = context_lock_take(device);
	CUresult result = GUARDED(REAL(cuGreenCtxDestroy, green));

	if (result == CUDA_SUCCESS && device != NO_DEVICE && guard_enter()) {
		context_overhead_shrank(device);
		guard_leave();
	}
	context_lock_drop(is_locked);
	return result;
}

#define DESTROY(function, context) \
	struct destruction call = {.device = device_of(context)}; \
	held_drain(context); /* before the lock, for which other processes may wait */ \
	call.is_locked = context_lock_take(call.device); \
	before_destroy(&call, context); \
	CUresult result = GUARDED(REAL(function, context)); \
	return after_destroy(&call, result == CUDA_SUCCESS, result)

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
	DESTROY(cuCtxDestroy, context);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	DESTROY(cuCtxDestroy_v2, context);
}

/* The primary context's handle, which only retaining it returns. NULL: there is none now, or nothing is limited. */
static CUcontext primary_context(CUdevice device)
{
	CUcontext context = NULL;

	if (limits_state() != LIMITS_PRESENT || !primary_active(device) ||
	    REAL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS)
		return NULL;
	(void)release_primary(device);
	return context;
}

/* Only releasing the last reference destroys the context. */
#define RELEASE(function, device) \
	struct destruction call = {.device = device}; \
	held_drain(primary_context(device)); \
	call.is_locked = context_lock_take(device); \
	before_destroy(&call, primary_context(device)); \
	CUresult result = GUARDED(REAL(function, device)); \
	return after_destroy(&call, result == CUDA_SUCCESS && !primary_active(device), result)

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxRelease, device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxRelease_v2, device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxReset, device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	RELEASE(cuDevicePrimaryCtxReset_v2, device);
}

/* ---- code and buffers ---- */

/* Updates the overhead after a call that may have changed what the driver itself takes of the current card. */
static CUresult follow_up(CUresult result, void (*follow)(CUdevice device))
{
	CUdevice device;
	bool entered = result == CUDA_SUCCESS && guard_enter();

	if (!entered)
		return result;
	if (limits_state() == LIMITS_PRESENT && device_limits_current_device(&device))
		follow(device);
	guard_leave();
	return result;
}

enum { LIMIT_STACK_SIZE = 0, MULTIPROCESSORS = 16, THREADS_PER_MULTIPROCESSOR = 39 }; /* CUlimit, CUdevice_attribute */

/* A card has a stack of the largest size that was asked for, for each thread that it can run (docs/reality.md). */
static uint64_t stack_growth(size_t size)
{
	int multiprocessors, threads;
	CUdevice device;
	size_t before;

	if (!device_limits_current_device(&device) || REAL(cuCtxGetLimit, &before, LIMIT_STACK_SIZE) != CUDA_SUCCESS ||
	    size <= before || REAL(cuDeviceGetAttribute, &multiprocessors, MULTIPROCESSORS, device) != CUDA_SUCCESS ||
	    REAL(cuDeviceGetAttribute, &threads, THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS)
		return 0;
	return (uint64_t)multiprocessors * (uint64_t)threads * (size - before);
}

/* Looks first, if nobody knows what a context takes. */
static bool has_no_room(void)
{
	CUdevice device;
	bool entered = limits_state() == LIMITS_PRESENT && guard_enter(), is_over = false;

	if (!entered)
		return false;
	if (device_limits_current_device(&device))
		is_over = context_overhead_is_over(device);
	guard_leave();
	return is_over;
}

/*
 * The stacks are part of NVML's figure, so their booking ends when that is looked up. What a context takes has to be known
 * before, or they would count as part of that.
 */
static CUresult set_stack_size(size_t size)
{
	struct charge charge;

	(void)has_no_room();
	uint64_t growth = GUARDED(stack_growth(size));
	CUresult result = charge_begin(&charge, growth);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuCtxSetLimit, LIMIT_STACK_SIZE, size);
	(void)charge_end(&charge, CUDA_ERROR_OUT_OF_MEMORY, 0);
	return result;
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUresult result = limit == LIMIT_STACK_SIZE && limits_state() == LIMITS_PRESENT
				  ? set_stack_size(value)
				  : GUARDED(REAL(cuCtxSetLimit, limit, value));

	return follow_up(result, context_overhead_follow);
}

/* The size of code is known when it is loaded. Where there is no room, no more is loaded, and what is too large unloaded. */
#define LOAD_CODE(unload, function, loaded, ...) \
	if (has_no_room()) \
		return CUDA_ERROR_OUT_OF_MEMORY; \
	CUresult result = follow_up(GUARDED(REAL(function, loaded, __VA_ARGS__)), context_overhead_changed); \
	if (result != CUDA_SUCCESS || !has_no_room()) \
		return result; \
	(void)unload(*(loaded)); \
	return CUDA_ERROR_OUT_OF_MEMORY

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *file)
{
	LOAD_CODE(cuModuleUnload, cuModuleLoad, module, file);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	LOAD_CODE(cuModuleUnload, cuModuleLoadData, module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
	LOAD_CODE(cuModuleUnload, cuModuleLoadDataEx, module, image, count, options, values);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	LOAD_CODE(cuModuleUnload, cuModuleLoadFatBinary, module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
	return follow_up(GUARDED(REAL(cuModuleUnload, module)), context_overhead_shrank);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *options, void **values, unsigned int count,
				  int *library_options, void **library_values, unsigned int library_count)
{
	LOAD_CODE(cuLibraryUnload, cuLibraryLoadData, library, code, options, values, count, library_options,
		  library_values, library_count);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *options, void **values,
				      unsigned int count, int *library_options, void **library_values,
				      unsigned int library_count)
{
	LOAD_CODE(cuLibraryUnload, cuLibraryLoadFromFile, library, file, options, values, count, library_options,
		  library_values, library_count);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	return follow_up(GUARDED(REAL(cuLibraryUnload, library)), context_overhead_shrank);
}

/* ---- code that the driver loads with a function's first use ---- */

#define FIND_CODE(function, found, ...) \
	if (has_no_room()) \
		return CUDA_ERROR_OUT_OF_MEMORY; \
	CUresult result = follow_up(GUARDED(REAL(function, found, __VA_ARGS__)), context_overhead_changed); \
	if (result == CUDA_SUCCESS) \
		first_uses_forget(*(found)); \
	return result

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	FIND_CODE(cuModuleGetFunction, function, module, name);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	FIND_CODE(cuLibraryGetModule, module, library);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	FIND_CODE(cuLibraryGetKernel, kernel, library, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	FIND_CODE(cuKernelGetFunction, function, kernel);
}

EXPORT CUresult cuFuncLoad(CUfunction function)
{
	return has_no_room() ? CUDA_ERROR_OUT_OF_MEMORY
			     : follow_up(GUARDED(REAL(cuFuncLoad, function)), context_overhead_changed);
}

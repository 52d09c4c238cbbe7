/*
 * The wrappers of libcuda.so.1 that allocate, free and tell device memory (the list: cuda_hooks.h).
 *
 * Each does what the driver's function of that name does, within the container's limit. A driver's failure leaves no
 * trace; a limit that is hit is CUDA_ERROR_OUT_OF_MEMORY. A broken limits file fails cuInit: nothing of CUDA works
 * then, and the message says why; allocations are refused too, for who got in before.
 */
#include "cards.h"
#include "charge.h"
#include "cuda_hooks.h"
#include "limits_file.h"
#include "usage.h"

/* Rows of a pitched allocation are padded to this on all current cards; the driver's answer corrects the guess. */
enum { PITCH_GUESS = 512 };

EXPORT CUresult cuInit(unsigned int flags)
{
	if (limits_state() == LIMITS_BROKEN)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	return REAL(cuInit, flags);
}

/* ---- allocate ---- */

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc, pointer, size);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAlloc_v2, pointer, size);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocManaged, pointer, size, flags);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

/* UINT64_MAX, which no limit but "unlimited" has room for, where the product does not fit. */
static uint64_t area(uint64_t pitch, uint64_t height)
{
	uint64_t bytes;

	return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t guessed_pitch(uint64_t width)
{
	return width > UINT64_MAX - PITCH_GUESS ? width : (width + PITCH_GUESS - 1) / PITCH_GUESS * PITCH_GUESS;
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
				unsigned int element_size)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, area(guessed_pitch(width), height));

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch, pointer, pitch, width, height, element_size);
	if (result == CUDA_SUCCESS && !charge_resize(&charge, area(*pitch, height))) {
		(void)REAL(cuMemFree, *pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
				   unsigned int element_size)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, area(guessed_pitch(width), height));

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocPitch_v2, pointer, pitch, width, height, element_size);
	if (result == CUDA_SUCCESS && !charge_resize(&charge, area(*pitch, height))) {
		(void)REAL(cuMemFree_v2, *pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct charge charge;
	CUresult result = charge_begin_stream_ordered(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync, pointer, size, stream);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct charge charge;
	CUresult result = charge_begin_stream_ordered(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocAsync_ptsz, pointer, size, stream);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct charge charge;
	CUresult result = charge_begin_stream_ordered(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync, pointer, size, pool, stream);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct charge charge;
	CUresult result = charge_begin_stream_ordered(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemAllocFromPoolAsync_ptsz, pointer, size, pool, stream);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

/* ---- free ---- */

/* `call` runs with the guard held, if there is one to hold. */
#define GUARDED(call)                           \
	({                                      \
		bool entered = guard_enter();   \
		CUresult result = (call);       \
		if (entered)                    \
			guard_leave();          \
		result;                         \
	})

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	struct allocation *entry = charge_take(pointer);

	return charge_give_back(entry, GUARDED(REAL(cuMemFree, pointer)));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct allocation *entry = charge_take(pointer);

	return charge_give_back(entry, GUARDED(REAL(cuMemFree_v2, pointer)));
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	struct allocation *entry = charge_take(pointer);

	return charge_give_back(entry, GUARDED(REAL(cuMemFreeAsync, pointer, stream)));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	struct allocation *entry = charge_take(pointer);

	return charge_give_back(entry, GUARDED(REAL(cuMemFreeAsync_ptsz, pointer, stream)));
}

/* ---- a context goes, and its memory with it ---- */

static CUresult after_destroy(CUcontext context, uint64_t serial, CUresult result)
{
	if (context && result == CUDA_SUCCESS)
		charge_drop_context(context, serial);
	return result;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
	uint64_t serial = allocations_serial();

	return after_destroy(context, serial, GUARDED(REAL(cuCtxDestroy, context)));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
	uint64_t serial = allocations_serial();

	return after_destroy(context, serial, GUARDED(REAL(cuCtxDestroy_v2, context)));
}

static bool primary_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return REAL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The primary context's handle, which only retaining it tells; NULL: there is none now, or nothing is limited. */
static CUcontext primary_context(CUdevice device)
{
	CUcontext context = NULL;

	if (limits_state() != LIMITS_PRESENT || !primary_active(device) ||
	    REAL(cuDevicePrimaryCtxRetain, &context, device) != CUDA_SUCCESS)
		return NULL;
	if (REAL(cuDevicePrimaryCtxRelease_v2, device) == CUDA_ERROR_NOT_SUPPORTED)
		(void)REAL(cuDevicePrimaryCtxRelease, device);
	return context;
}

/* Releasing a reference destroys only with the last one. */
static CUcontext if_gone(CUcontext context, CUdevice device)
{
	return context && primary_active(device) ? NULL : context;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	uint64_t serial = allocations_serial();
	CUcontext context = primary_context(device);
	CUresult result = GUARDED(REAL(cuDevicePrimaryCtxRelease, device));

	return after_destroy(if_gone(context, device), serial, result);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	uint64_t serial = allocations_serial();
	CUcontext context = primary_context(device);
	CUresult result = GUARDED(REAL(cuDevicePrimaryCtxRelease_v2, device));

	return after_destroy(if_gone(context, device), serial, result);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	uint64_t serial = allocations_serial();
	CUcontext context = primary_context(device);

	return after_destroy(context, serial, GUARDED(REAL(cuDevicePrimaryCtxReset, device)));
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	uint64_t serial = allocations_serial();
	CUcontext context = primary_context(device);

	return after_destroy(context, serial, GUARDED(REAL(cuDevicePrimaryCtxReset_v2, device)));
}

/* ---- tell ---- */

static size_t lesser(size_t a, uint64_t b)
{
	return a < b ? a : (size_t)b;
}

/* What is free in the container is what its limit leaves, as far as the card has it. */
static void narrow_info(size_t *available, size_t *total)
{
	struct limited_card card;
	CUdevice device;
	uint64_t held;

	if (!current_device(&device) || !card_of_device(device, &card))
		return;
	bool known = usage_held(card.uuid, &held);
	*total = lesser(*total, card.memory);
	*available = known && held < card.memory ? lesser(*available, card.memory - held) : 0;
}

static void narrow_total(size_t *bytes, CUdevice device)
{
	struct limited_card card;

	if (card_of_device(device, &card))
		*bytes = lesser(*bytes, card.memory);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuMemGetInfo_v2, available, total);

	if (entered && result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT)
		narrow_info(available, total);
	if (entered)
		guard_leave();
	return result;
}

EXPORT CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuMemGetInfo, available, total);

	if (entered && result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT) {
		size_t wide_available = *available, wide_total = *total;
		narrow_info(&wide_available, &wide_total);
		*available = (unsigned int)wide_available;
		*total = (unsigned int)wide_total;
	}
	if (entered)
		guard_leave();
	return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuDeviceTotalMem_v2, bytes, device);

	if (entered && result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT)
		narrow_total(bytes, device);
	if (entered)
		guard_leave();
	return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
	bool entered = guard_enter();
	CUresult result = REAL(cuDeviceTotalMem, bytes, device);

	if (entered && result == CUDA_SUCCESS && limits_state() == LIMITS_PRESENT) {
		size_t wide = *bytes;
		narrow_total(&wide, device);
		*bytes = (unsigned int)wide;
	}
	if (entered)
		guard_leave();
	return result;
}

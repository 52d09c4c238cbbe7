/*
 * The wrappers of libcuda.so.1 that allocate, free and tell device memory (the list: driver/cuda_table.h).
 *
 * Each does what the driver's function of that name does, within the container's limit. A driver's failure leaves no
 * trace; a limit that is hit is CUDA_ERROR_OUT_OF_MEMORY. A broken limits file fails cuInit: nothing of CUDA works
 * then, and the message says why; allocations are refused too, for who got in before.
 */
#include "base/log.h"
#include "driver/cuda_table.h"
#include "memory/charge.h"
#include "memory/pools.h"
#include "shared/limits_file.h"

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
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		result = charge_stand_in(&charge, pointer);
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
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		result = charge_stand_in(&charge, pointer);
		if (result == CUDA_SUCCESS)
			*pitch = guessed_pitch(width);
	}
	if (result == CUDA_SUCCESS && !charge_resize(&charge, area(*pitch, height))) {
		(void)REAL(cuMemFree_v2, *pointer);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

/* ---- free ---- */

/* What was not charged by itself may have been a pool's. */
static CUresult give_back(struct allocation *entry, CUresult result)
{
	bool pooled = !entry && result == CUDA_SUCCESS;

	result = charge_give_back(entry, result);
	if (pooled && guard_enter()) {
		launched_freed();
		pools_settle();
		guard_leave();
	}
	return result;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	return give_back(entry, GUARDED(REAL(cuMemFree, pointer)));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	return give_back(entry, GUARDED(REAL(cuMemFree_v2, pointer)));
}

/* ---- hand out to other processes ---- */

/* Managed memory cannot be shared so; the driver's own answer would not say why this pointer is managed. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	struct allocation entry;

	if (limits_state() == LIMITS_PRESENT && allocations_find(ALLOCATED_POINTER, pointer, &entry) && entry.managed) {
		log_once(LOG_ERROR, "cuIpcGetMemHandle: the card was full when this memory was allocated, it is virtual "
				    "and cannot be shared between processes");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return GUARDED(REAL(cuIpcGetMemHandle, handle, pointer));
}

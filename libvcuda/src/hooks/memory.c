/*
 * The wrappers of libcuda.so.1 for cuInit and for allocating and freeing device memory. driver/cuda_table.h lists all
 * wrappers.
 *
 * Each does what the driver's function of that name does, within the container's limit. A failure of the driver leaves
 * no charge. At the limit an allocation returns CUDA_ERROR_OUT_OF_MEMORY. With a broken limits file cuInit fails, so
 * that nothing of CUDA works, and a message gives the reason. Allocations are refused as well, for processes that
 * called cuInit before.
 */
#include "base/log.h"
#include "driver/cuda_table.h"
#include "memory/charge.h"
#include "memory/pools.h"
#include "memory/sharing.h"
#include "shared/guard.h"
#include "shared/limits.h"

/* All current cards pad the rows of a pitched allocation to this. The driver's result replaces the guess. */
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
		result = charge_managed_fallback(&charge, pointer);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
	struct charge charge;
	CUresult result = charge_begin(&charge, size);

	if (result != CUDA_SUCCESS)
		return result;
	charge.is_unlisted = true;
	result = REAL(cuMemAllocManaged, pointer, size, flags);
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

/* UINT64_MAX where the product does not fit. No limit but "unlimited" has room for that. */
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
		result = charge_managed_fallback(&charge, pointer);
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

/* A pointer without a charge of its own may be memory of a pool. */
static CUresult give_back_pointer(struct allocation *entry, CUdeviceptr pointer, CUresult result)
{
	bool pooled = !entry && result == CUDA_SUCCESS;

	result = charge_give_back(entry, result);
	if (pooled)
		sharing_pointer_freed(pointer);
	if (pooled && guard_enter()) {
		graph_launches_freed();
		pools_reconcile();
		guard_leave();
	}
	return result;
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	return give_back_pointer(entry, pointer, GUARDED(REAL(cuMemFree, pointer)));
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct allocation *entry = charge_take(ALLOCATED_POINTER, pointer);

	return give_back_pointer(entry, pointer, GUARDED(REAL(cuMemFree_v2, pointer)));
}

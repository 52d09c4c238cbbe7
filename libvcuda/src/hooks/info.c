/*
 * The wrappers of libcuda.so.1 that return how much memory a card has and how much is free. driver/cuda_table.h lists
 * all wrappers.
 *
 * They return the limit and what it leaves, as far as the card has that much. NVML's functions for the same figures are
 * in hooks/nvml.c.
 */
#include "driver/cuda_table.h"
#include "memory/charge.h"
#include "memory/context_overhead.h"
#include "memory/managed_free.h"
#include "memory/pools.h"
#include "memory/sharing.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"
#include "vgpu_limits.h"

static size_t lesser(size_t a, uint64_t b)
{
	return a < b ? a : (size_t)b;
}

/* Free in the container is what its limit leaves, as far as the card has that much free. */
static void narrow_info(size_t *available, size_t *total)
{
	struct device_limits card;
	CUdevice device;
	uint64_t held;

	if (!device_limits_current_device(&device) || !device_limits_of(device, &card))
		return;
	managed_free_complete();
	(void)sharing_reclaim();
	pools_reconcile();
	bool known = usage_held(card.uuid, context_overhead_unbooked(device), card.overhead, &held);
	uint64_t left = known && held < card.memory ? card.memory - held : 0;
	if (card.oversubscribe && card.memory != VGPU_UNLIMITED) { /* managed memory provides what the card lacks */
		*total = card.memory;
		*available = left;
		return;
	}
	*total = lesser(*total, card.memory);
	*available = lesser(*available, left);
}

static void narrow_total(size_t *bytes, CUdevice device)
{
	struct device_limits card;

	if (!device_limits_of(device, &card))
		return;
	if (card.oversubscribe && card.memory != VGPU_UNLIMITED)
		*bytes = card.memory;
	else
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

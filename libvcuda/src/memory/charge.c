/*
 * Implements memory/charge.h. Where the limit has no room, the booking is tried again after the process's pools have
 * been trimmed and again after its pending frees of managed memory.
 */
#include "memory/charge.h"

#include <stdlib.h>

#include "base/log.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "memory/calls.h"
#include "memory/context_overhead.h"
#include "memory/managed_free.h"
#include "memory/physical.h"
#include "memory/pools.h"
#include "memory/sharing.h"
#include "memory/unlisted.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

enum { BLOCK = 2 << 20 };

/* The driver has ended an array's bindings with the array. */
static void release(struct allocation *entry)
{
	if (entry->kind == ALLOCATED_ARRAY || entry->kind == ALLOCATED_MIPMAP)
		physical_unbind_all((struct binder){SPARSE_ARRAY, entry->key, entry->serial}, UINT64_MAX);
	sharing_release(entry);
}

/*
 * The driver gives memory in blocks: small requests share some, larger ones take whole ones (docs/reality.md). How full
 * the blocks are is in NVML's figure only.
 */
static int64_t padding(const struct allocation *entry)
{
	uint64_t rest = entry->size % BLOCK;

	if (entry->card == USAGE_NO_CARD || !rest)
		return 0;
	return (int64_t)(entry->size <= BLOCK / 2 ? entry->size : BLOCK - rest);
}

static CUresult book_on(struct charge *charge, int place, const struct device_limits *card)
{
	struct allocation *entry = place == USAGE_NO_CARD ? NULL : calloc(1, sizeof(*entry));

	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->card = place;
	entry->size = charge->size;
	if (!usage_reserve_in_call(place, charge->size, device_limits_memory(card)) &&
	    !(context_overhead_fell(charge->device) &&
	      usage_reserve_in_call(place, charge->size, device_limits_memory(card))) &&
	    !(sharing_reclaim() && usage_reserve_in_call(place, charge->size, device_limits_memory(card))) &&
	    !(pools_reclaim(place) && (usage_reserve_in_call(place, charge->size, device_limits_memory(card)) ||
				       (context_overhead_fell(charge->device) &&
					usage_reserve_in_call(place, charge->size, device_limits_memory(card))))) &&
	    !(managed_free_reclaim() && usage_reserve_in_call(place, charge->size, device_limits_memory(card)))) {
		log_line(LOG_INFO,
			 "an allocation of %llu bytes on device %d was refused: the container's limit is %llu bytes",
			 (unsigned long long)charge->size, charge->device, (unsigned long long)card->memory);
		usage_refused(place);
		free(entry);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!charge->outlives_context && REAL(cuCtxGetCurrent, &entry->context) != CUDA_SUCCESS)
		entry->context = NULL;
	charge->entry = entry;
	return CUDA_SUCCESS;
}

/* Books on charge->device. A card without a limit gets no booking. */
static CUresult book_on_device(struct charge *charge)
{
	struct device_limits card;

	if (charge->device == NO_DEVICE || !device_limits_of(charge->device, &card))
		return CUDA_SUCCESS;
	return book_on(charge, usage_card(card.uuid), &card);
}

static bool start(struct charge *charge, uint64_t size, bool outlives_context)
{
	*charge = (struct charge){.size = size, .outlives_context = outlives_context, .device = NO_DEVICE};
	struct guard_thread *thread = &guard_this_thread;

	charge->entered = guard_enter_thread(thread);
	if (charge->entered)
		calls_begin_thread(thread);
	return charge->entered;
}

static void leave(void)
{
	struct guard_thread *thread = &guard_this_thread;

	calls_end_thread(thread);
	guard_leave_thread(thread);
}

static CUresult begin(struct charge *charge)
{
	CUresult result = limits_state() == LIMITS_BROKEN ? CUDA_ERROR_OUT_OF_MEMORY : book_on_device(charge);

	if (result != CUDA_SUCCESS)
		leave();
	return result;
}

static CUresult begin_on_current(struct charge *charge, uint64_t size, bool outlives_context)
{
	if (!start(charge, size, outlives_context))
		return CUDA_SUCCESS;
	if (!device_limits_current_device(&charge->device))
		charge->device = NO_DEVICE;
	else if (limits_state() == LIMITS_PRESENT)
		context_overhead_follow_rarely(charge->device);
	return begin(charge);
}

CUresult charge_begin(struct charge *charge, uint64_t size)
{
	return begin_on_current(charge, size, false);
}

CUresult charge_begin_stream_ordered(struct charge *charge, uint64_t size)
{
	return begin_on_current(charge, size, true);
}

CUresult charge_begin_on(struct charge *charge, CUdevice device, uint64_t size)
{
	if (!start(charge, size, true))
		return CUDA_SUCCESS;
	charge->device = device;
	if (device_limits_is_foreign(device)) {
		leave();
		return CUDA_ERROR_NOT_PERMITTED;
	}
	return begin(charge);
}

bool charge_resize(struct charge *charge, uint64_t size)
{
	struct device_limits card;

	if (!charge->entry || size == charge->size)
		return true;
	if (size < charge->size)
		usage_release(charge->entry->card, charge->size - size);
	else if (device_limits_of(charge->device, &card) &&
		 !usage_reserve_in_call(charge->entry->card, size - charge->size, device_limits_memory(&card)))
		return false;
	charge->size = charge->entry->size = size;
	return true;
}

/* If the pool of the stream belongs to another card, moves the booking there. */
static CUresult follow_pointer(struct charge *charge, CUdeviceptr pointer)
{
	CUdevice device;

	if (REAL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) != CUDA_SUCCESS ||
	    device == charge->device)
		return CUDA_SUCCESS;
	if (charge->entry)
		release(charge->entry);
	charge->entry = NULL;
	charge->device = device;
	CUresult result = book_on_device(charge);
	if (result != CUDA_SUCCESS)
		(void)REAL(cuMemFree_v2, pointer);
	return result;
}

/* Works while some thread captures a stream, as the calls do that it replaces. */
static CUresult alloc_managed(CUdeviceptr *pointer, size_t size)
{
	CUstreamCaptureMode mode = stream_capture_relax();
	CUresult result = REAL(cuMemAllocManaged, pointer, size, CU_MEM_ATTACH_GLOBAL);

	stream_capture_restore(mode);
	return result;
}

CUresult charge_managed_fallback(struct charge *charge, CUdeviceptr *pointer)
{
	struct device_limits card;

	if (!charge->entry || !device_limits_of(charge->device, &card) || !card.oversubscribe)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = alloc_managed(pointer, charge->size);
	if (result != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	charge->entry->managed = charge->is_unlisted = true;
	usage_managed((int64_t)charge->size);
	log_line(LOG_INFO, "device %d is full: %llu bytes were allocated in managed memory instead", charge->device,
		 (unsigned long long)charge->size);
	return CUDA_SUCCESS;
}

CUresult charge_managed_fallback_for_pool(CUdevice device, uint64_t size, CUdeviceptr *pointer)
{
	struct charge charge;
	CUresult result = charge_begin_on(&charge, device, size);

	if (result != CUDA_SUCCESS)
		return result;
	result = charge_managed_fallback(&charge, pointer);
	if (result == CUDA_SUCCESS) {
		charge.entry->stream_ordered = true;
		if (REAL(cuCtxGetCurrent, &charge.entry->context) != CUDA_SUCCESS)
			charge.entry->context = NULL;
	}
	return charge_end(&charge, result, result == CUDA_SUCCESS ? *pointer : 0);
}

bool charge_has_no_fallback(const struct charge *charge, CUresult result)
{
	struct device_limits card;

	return result == CUDA_ERROR_OUT_OF_MEMORY && charge->entry && device_limits_of(charge->device, &card) &&
	       card.oversubscribe;
}

static void keep_entry(struct allocation *entry)
{
	struct allocation *displaced = allocations_put(entry);

	if (displaced) /* freed by a way that no hook sees: the driver would not give out the key again otherwise */
		release(displaced);
}

CUresult charge_end(struct charge *charge, CUresult result, uint64_t key)
{
	if (!charge->entered)
		return result;
	if (charge->entry && result == CUDA_SUCCESS) {
		charge->entry->kind = charge->kind;
		charge->entry->key = key;
		charge->entry->device = charge->device;
		charge->entry->unlisted = charge->is_unlisted;
		if (charge->is_unlisted)
			unlisted_add(charge->entry->card, charge->entry->size);
		int64_t bytes = padding(charge->entry);
		if (bytes && context_overhead_padded(charge->entry->card, bytes))
			context_overhead_padding_grew(charge->entry->card, charge->device);
		keep_entry(charge->entry);
	} else if (charge->entry) {
		release(charge->entry);
	}
	leave();
	return result;
}

CUresult charge_end_stream_ordered(struct charge *charge, CUresult result, CUdeviceptr pointer)
{
	if (charge->entered && result == CUDA_SUCCESS)
		result = follow_pointer(charge, pointer);
	return charge_end(charge, result, pointer);
}

struct allocation *charge_take(enum allocation_kind kind, uint64_t key)
{
	struct guard_thread *thread = &guard_this_thread;

	if (thread->inside || limits_state() != LIMITS_PRESENT)
		return NULL;
	calls_begin_thread(thread);
	struct allocation *entry = allocations_take(kind, key);
	if (entry)
		entry->is_freed = true;
	else
		calls_end_thread(thread);
	return entry;
}

CUresult charge_give_back(struct allocation *entry, CUresult result)
{
	bool is_freed = entry && entry->is_freed;

	if (is_freed)
		entry->is_freed = false;
	if (entry && result == CUDA_SUCCESS) {
		int64_t bytes = padding(entry);
		int card = entry->card;
		CUdevice device = entry->device;
		release(entry);
		if (bytes && context_overhead_padded(card, -bytes) && guard_enter()) {
			context_overhead_padding_grew(card, device);
			guard_leave();
		}
	} else if (entry) {
		keep_entry(entry);
	}
	if (is_freed)
		calls_end();
	return result;
}

void charge_drop_context(CUcontext context, uint64_t serial)
{
	struct allocation *entry = allocations_take_context(context, serial);

	while (entry) {
		struct allocation *next = entry->next;
		release(entry);
		entry = next;
	}
	managed_free_drop_context(context);
	pools_drop_context(context);
}

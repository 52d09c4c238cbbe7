/* See charge.h. */
#include "charge.h"

#include <stdlib.h>

#include "cards.h"
#include "cuda_hooks.h"
#include "limits_file.h"
#include "log.h"
#include "usage.h"

enum { NO_DEVICE = -1 };

static __thread int inside;

bool guard_enter(void)
{
	if (inside || limits_state() == LIMITS_ABSENT)
		return false;
	inside++;
	return true;
}

void guard_leave(void)
{
	inside--;
}

static void release(struct allocation *entry)
{
	usage_release(entry->card, entry->size);
	free(entry);
}

static CUresult book_on(struct charge *charge, int place, const struct limited_card *card)
{
	struct allocation *entry = place == USAGE_NO_CARD ? NULL : calloc(1, sizeof(*entry));

	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	entry->card = place;
	entry->size = charge->size;
	if (!usage_reserve(place, charge->size, card->memory)) {
		log_line(LOG_INFO, "%llu bytes refused on device %d: the container's limit is %llu bytes",
			 (unsigned long long)charge->size, charge->device, (unsigned long long)card->memory);
		free(entry);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!charge->stream_ordered && REAL(cuCtxGetCurrent, &entry->context) != CUDA_SUCCESS)
		entry->context = NULL;
	charge->entry = entry;
	return CUDA_SUCCESS;
}

/* Books on charge->device; a card without a limit is not booked. */
static CUresult book(struct charge *charge)
{
	struct limited_card card;

	if (charge->device == NO_DEVICE || !card_of_device(charge->device, &card))
		return CUDA_SUCCESS;
	return book_on(charge, usage_card(card.uuid), &card);
}

static CUresult begin(struct charge *charge, uint64_t size, bool stream_ordered)
{
	*charge = (struct charge){.size = size, .stream_ordered = stream_ordered, .device = NO_DEVICE};
	charge->entered = guard_enter();
	if (!charge->entered)
		return CUDA_SUCCESS;
	if (!current_device(&charge->device))
		charge->device = NO_DEVICE;
	CUresult result = limits_state() == LIMITS_BROKEN ? CUDA_ERROR_OUT_OF_MEMORY : book(charge);
	if (result != CUDA_SUCCESS)
		guard_leave();
	return result;
}

CUresult charge_begin(struct charge *charge, uint64_t size)
{
	return begin(charge, size, false);
}

CUresult charge_begin_stream_ordered(struct charge *charge, uint64_t size)
{
	return begin(charge, size, true);
}

bool charge_resize(struct charge *charge, uint64_t size)
{
	struct limited_card card;

	if (!charge->entry || size == charge->size)
		return true;
	if (size < charge->size)
		usage_release(charge->entry->card, charge->size - size);
	else if (card_of_device(charge->device, &card) &&
		 !usage_reserve(charge->entry->card, size - charge->size, card.memory))
		return false;
	charge->size = charge->entry->size = size;
	return true;
}

/* The pool of the stream belongs to another card: books there instead. */
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
	CUresult result = book(charge);
	if (result != CUDA_SUCCESS)
		(void)REAL(cuMemFree_v2, pointer);
	return result;
}

static void record(struct allocation *entry, CUdeviceptr pointer)
{
	entry->pointer = pointer;
	struct allocation *displaced = allocations_put(entry);
	if (displaced) /* freed by a way that is not hooked, or the driver would not give the pointer out again */
		release(displaced);
}

CUresult charge_end(struct charge *charge, CUresult result, CUdeviceptr pointer)
{
	if (!charge->entered)
		return result;
	if (charge->stream_ordered && result == CUDA_SUCCESS)
		result = follow_pointer(charge, pointer);
	if (charge->entry && result == CUDA_SUCCESS)
		record(charge->entry, pointer);
	else if (charge->entry)
		release(charge->entry);
	guard_leave();
	return result;
}

struct allocation *charge_take(CUdeviceptr pointer)
{
	return inside || limits_state() != LIMITS_PRESENT ? NULL : allocations_take(pointer);
}

CUresult charge_give_back(struct allocation *entry, CUresult result)
{
	if (entry && result == CUDA_SUCCESS)
		release(entry);
	else if (entry)
		record(entry, entry->pointer);
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
}

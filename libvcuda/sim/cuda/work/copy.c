/*
 * What a copy and a fill do: their checks, their durations, and moving the bytes. The calls are in
 * cuda/work/copy_call.c, queueing in cuda/work/queue.c.
 */
#include <string.h>

#include "cuda/memory/allocation.h"
#include "cuda/work/submit.h"

#define COPY_LATENCY_NS 2000u
#define CHUNK ((size_t)1 << 20) /* bytes that are touched at once: a thread that frees waits for at most so many */

/* Finds where the bytes lie and how many of them are contiguous: a range may span several mappings. Under the lock. */
static CUresult locate_bytes(CUdeviceptr pointer, size_t *bytes, bool on_card, char **at)
{
	struct sim_allocation *allocation = sim_allocation_at(pointer, 1);

	if (!allocation) {
		*at = (char *)(uintptr_t)pointer;
		return !on_card && pointer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	REJECT(allocation->physical && allocation->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	size_t rest = allocation->size - (pointer - allocation->base);
	char *backing = sim_allocation_backing(allocation);
	if (!backing)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*at = backing + (pointer - allocation->base);
	*bytes = *bytes < rest ? *bytes : rest;
	return CUDA_SUCCESS;
}

/* A range that starts inside an allocation and leaves it is an error; it is not host memory either. */
static CUresult check_range(CUdeviceptr pointer, size_t bytes, bool on_card)
{
	CUresult result = CUDA_SUCCESS;
	char *at;

	while (bytes && result == CUDA_SUCCESS) {
		size_t part = bytes;
		pthread_mutex_lock(&sim_driver.lock);
		result = locate_bytes(pointer, &part, on_card, &at);
		pthread_mutex_unlock(&sim_driver.lock);
		if (part < bytes)
			on_card = true;
		pointer += part;
		bytes -= part;
	}
	return result;
}

CUdeviceptr sim_copy_row(const struct sim_side *side, size_t row, size_t slice)
{
	return side->base + ((slice + side->z) * side->rows + row + side->y) * side->pitch + side->x;
}

static CUresult check_side(const struct sim_copy *copy, const struct sim_side *side)
{
	size_t rows = copy->height * copy->depth;

	REJECT(rows > 1 && side->pitch < side->x + copy->width);
	REJECT(copy->depth > 1 && side->rows < side->y + copy->height);

	TRY(check_range(sim_copy_row(side, 0, 0), copy->width, side->on_card));
	if (rows > 1)
		TRY(check_range(sim_copy_row(side, copy->height - 1, copy->depth - 1), copy->width, side->on_card));
	return CUDA_SUCCESS;
}

bool sim_copy_is_nothing(const struct sim_copy *copy)
{
	return !copy->width || !copy->height || !copy->depth;
}

CUresult sim_copy_check(const struct sim_copy *copy)
{
	if (sim_copy_is_nothing(copy))
		return CUDA_SUCCESS;
	TRY(check_side(copy, &copy->to));
	return check_side(copy, &copy->from);
}

/*
 * Begins to touch bytes of both sides, or of one side if `source` is NULL. They stay in place until
 * sim_allocation_bytes_end.
 */
static CUresult begin_bytes(CUdeviceptr to, bool to_card, char **target, CUdeviceptr from, bool from_card,
			    char **source, size_t *part)
{
	*part = *part < CHUNK ? *part : CHUNK;
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = locate_bytes(to, part, to_card, target);
	if (result == CUDA_SUCCESS && source)
		result = locate_bytes(from, part, from_card, source);
	if (result == CUDA_SUCCESS)
		sim_allocation_bytes_begin();
	return sim_object_unlock(result);
}

static void copy_row(CUdeviceptr to, bool to_card, CUdeviceptr from, bool from_card, size_t bytes)
{
	char *target, *source;

	while (bytes) {
		size_t part = bytes;
		if (begin_bytes(to, to_card, &target, from, from_card, &source, &part) != CUDA_SUCCESS)
			return; /* freed since the check */
		memmove(target, source, part);
		sim_allocation_bytes_end();
		to += part;
		from += part;
		bytes -= part;
	}
}

void sim_copy_perform(const struct sim_copy *copy)
{
	for (size_t slice = 0; slice < copy->depth; slice++)
		for (size_t row = 0; row < copy->height; row++)
			copy_row(sim_copy_row(&copy->to, row, slice), copy->to.on_card || copy->to.is_ours,
				 sim_copy_row(&copy->from, row, slice), copy->from.on_card || copy->from.is_ours,
				 copy->width);
}

/* The card that has the side's memory; -1: none. */
static int card_of(const struct sim_side *side)
{
	pthread_mutex_lock(&sim_driver.lock);
	const struct sim_allocation *allocation = sim_allocation_at(sim_copy_row(side, 0, 0), 0);
	bool is_host =
		allocation && (allocation->memory == SIM_HOST_MEMORY || allocation->memory == SIM_REGISTERED_MEMORY);
	int card = allocation && !is_host ? (int)allocation->card : -1;
	pthread_mutex_unlock(&sim_driver.lock);
	return card;
}

/*
 * A copy within a card takes half its bandwidth (read and write), whatever the name of the call. Other copies have the
 * speed of the card's PCIe generation.
 */
uint64_t sim_copy_duration(struct sim_copy *copy, const struct sim_context *context)
{
	int to = card_of(&copy->to);

	copy->is_within = to >= 0 && to == card_of(&copy->from);
	const struct sim_card *card = sim_device_card(context->device);
	uint64_t bytes = (uint64_t)copy->width * copy->height * copy->depth;
	uint64_t bus = card->compute_major >= 9 ? 50 : card->compute_major == 8 ? 25 : 12; /* bytes per ns */
	uint64_t memory = (uint64_t)card->bus_width / 8 * card->memory_clock_mhz / 1000;

	return COPY_LATENCY_NS + bytes / (copy->is_within && memory ? memory : bus);
}

uint64_t sim_copy_fill_duration(const struct sim_fill *fill, const struct sim_context *context)
{
	const struct sim_card *card = sim_device_card(context->device);
	uint64_t memory = (uint64_t)card->bus_width / 8 * card->memory_clock_mhz * 2 / 1000;

	return COPY_LATENCY_NS + (memory ? (uint64_t)fill->width * fill->element * fill->height / memory : 0);
}

CUresult sim_copy_fill_check(const struct sim_fill *fill)
{
	size_t bytes;

	REJECT((fill->element != 1 && fill->element != 2 && fill->element != 4) || fill->to % fill->element ||
	       __builtin_mul_overflow(fill->width, fill->element, &bytes) || (fill->height > 1 && fill->pitch < bytes));
	if (!bytes || !fill->height)
		return CUDA_SUCCESS;

	TRY(check_range(fill->to, bytes, true));
	if (fill->height > 1)
		TRY(check_range(fill->to + (fill->height - 1) * fill->pitch, bytes, true));
	return CUDA_SUCCESS;
}

static void repeat(char *at, const struct sim_fill *fill, size_t bytes)
{
	if (fill->element == 1) {
		memset(at, (unsigned char)fill->value, bytes);
		return;
	}
	for (size_t i = 0; i < bytes; i += fill->element)
		memcpy(at + i, &fill->value, fill->element); /* little endian, like every machine with such a card */
}

void sim_copy_fill_perform(const struct sim_fill *fill)
{
	for (size_t row = 0; row < fill->height; row++) {
		CUdeviceptr to = fill->to + row * fill->pitch;
		for (size_t bytes = fill->width * fill->element, part; bytes; bytes -= part, to += part) {
			char *at;
			part = bytes;
			if (begin_bytes(to, true, &at, 0, false, NULL, &part) != CUDA_SUCCESS)
				return;
			repeat(at, fill, part);
			sim_allocation_bytes_end();
		}
	}
}

/*
 * The wrappers of libcuda.so.1 that map physical memory to parts of sparse arrays. driver/cuda_table.h lists all wrappers.
 *
 * A sparse array takes no memory. What is mapped to it lives, and stays charged, until the same part is unmapped or
 * mapped to other memory, or the array goes. The driver does that in stream order: while the stream has work to do, the
 * memory stays charged until the part is mapped or unmapped again.
 */
#include <stdlib.h>

#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "memory/charge.h"
#include "memory/physical.h"
#include "shared/guard.h"
#include "shared/limits.h"

/* A number for the part of the array. Two parts with the same number stay charged as one at most too long. */
static uint64_t part_of(const CUarrayMapInfo *info)
{
	uint64_t part = info->subresource.type;

	for (int i = 0; i < 4; i++)
		part = (part ^ info->subresource.words[i]) * 0x9e3779b97f4a7c15u + 1;
	return part >> 1;
}

static struct binder array_of(const CUarrayMapInfo *info)
{
	return physical_binder(SPARSE_ARRAY, (uintptr_t)info->resource);
}

/* Adds references to all memory of the list. False: there is no memory for the records. */
static bool begin_list(const CUarrayMapInfo *list, unsigned int count, struct binding **bindings)
{
	bool room = true;

	for (unsigned int i = 0; i < count && room; i++)
		if (list[i].operation == CU_MEM_OPERATION_TYPE_MAP)
			bindings[i] = physical_begin_binding(list[i].memory, &room);
	return room;
}

/* `before`: as for physical_unbind. What is mapped to one part by one list stays charged until the next list. */
static void end_list(const CUarrayMapInfo *list, unsigned int count, struct binding **bindings, CUresult result,
		     bool is_idle, uint64_t before)
{
	for (unsigned int i = 0; i < count; i++) {
		const struct binder array = array_of(&list[i]);
		if (result == CUDA_SUCCESS && is_idle)
			physical_unbind(array, NO_DEVICE, part_of(&list[i]), 1, before);
		(void)physical_end_binding(bindings[i], result, array, part_of(&list[i]), 1);
	}
}

/* Asked in a mode in which the question spoils no capture of a stream. */
#define IS_IDLE(query, stream) \
	({ \
		CUstreamCaptureMode mode = stream_capture_relax(); \
		bool is_idle = GUARDED(REAL(query, stream)) == CUDA_SUCCESS; \
		stream_capture_restore(mode); \
		is_idle; \
	})

#define MAP_ARRAYS(function, query) \
	bool counts = !guard_this_thread.inside && limits_state() == LIMITS_PRESENT && list && count; \
	struct binding **bindings = counts ? calloc(count, sizeof(*bindings)) : NULL; \
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY; \
	uint64_t before = physical_next_binding(); \
	if (!counts) \
		return GUARDED(REAL(function, list, count, stream)); \
	bool is_locked = physical_lock_shared(); \
	if (bindings && begin_list(list, count, bindings)) \
		result = GUARDED(REAL(function, list, count, stream)); \
	if (bindings) \
		end_list(list, count, bindings, result, IS_IDLE(query, stream), before); \
	physical_unlock_shared(is_locked); \
	free(bindings); \
	return result

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	MAP_ARRAYS(cuMemMapArrayAsync, cuStreamQuery);
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	MAP_ARRAYS(cuMemMapArrayAsync_ptsz, cuStreamQuery_ptsz);
}

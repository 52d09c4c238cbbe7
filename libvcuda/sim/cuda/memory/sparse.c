/*
 * Mapping physical memory to parts of sparse arrays. It happens at once, not in stream order; no work reads or writes
 * such an array here.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/array.h"
#include "cuda/memory/physical.h"

struct tile_info { /* CUarrayMapInfo */
	unsigned resource_type;
	void *resource;
	unsigned char part[40];
	int operation, handle_type;
	struct sim_physical *memory;
	unsigned long long offset;
	unsigned device_mask, flags, reserved[2];
};

enum { MAP = 1, UNMAP = 2 };

struct sim_tile {
	struct sim_tile *next;
	unsigned char part[40];
	struct sim_physical *memory;
};

static void drop_tile(struct sim_tile **at)
{
	struct sim_tile *tile = *at;

	*at = tile->next;
	sim_physical_drop(tile->memory);
	free(tile);
}

void sim_sparse_drop_tiles(CUarray array)
{
	while (array->tiles)
		drop_tile(&array->tiles);
}

static void drop_part(CUarray array, const unsigned char part[40])
{
	for (struct sim_tile **at = &array->tiles; *at;)
		if (memcmp((*at)->part, part, sizeof(*at)->part) == 0)
			drop_tile(at);
		else
			at = &(*at)->next;
}

static CUresult apply(const struct tile_info *info)
{
	CUarray array = info->resource;

	REJECT(info->resource_type || !sim_object_is(array, SIM_ARRAY) || array->base);
	if (info->operation == UNMAP)
		return drop_part(array, info->part), CUDA_SUCCESS;
	struct sim_tile *tile = malloc(sizeof *tile);
	if (!tile || info->operation != MAP || !sim_object_is(info->memory, SIM_PHYSICAL) || !info->memory->handles) {
		free(tile);
		return CUDA_ERROR_INVALID_VALUE;
	}
	info->memory->mappings++;
	drop_part(array, info->part);
	*tile = (struct sim_tile){.next = array->tiles, .memory = info->memory};
	memcpy(tile->part, info->part, sizeof tile->part);
	array->tiles = tile;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemMapArrayAsync(struct tile_info *list, unsigned count, CUstream stream)
{
	CUresult result = list ? sim_init_ready() : CUDA_ERROR_INVALID_VALUE;

	(void)stream;
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = apply(&list[i]);
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemMapArrayAsync_ptsz(struct tile_info *list, unsigned count, CUstream stream)
{
	return cuMemMapArrayAsync(list, count, stream);
}

/*
 * Mapping physical memory to parts of sparse arrays and mipmapped arrays. It happens at once, not in stream order; no
 * work reads or writes such an array here.
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

enum { ARRAY, MIPMAP }; /* CUresourcetype */
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

void sim_sparse_drop_tiles(struct sim_tile **tiles)
{
	while (*tiles)
		drop_tile(tiles);
}

static void drop_part(struct sim_tile **at, const unsigned char part[40])
{
	while (*at)
		if (memcmp((*at)->part, part, sizeof(*at)->part) == 0)
			drop_tile(at);
		else
			at = &(*at)->next;
}

/* NULL: it is no sparse array. */
static struct sim_tile **tiles_of(const struct tile_info *info)
{
	CUarray array = info->resource;
	CUmipmappedArray mipmap = info->resource;

	if (info->resource_type == ARRAY && sim_object_is(array, SIM_ARRAY) && !array->base)
		return &array->tiles;
	if (info->resource_type == MIPMAP && sim_object_is(mipmap, SIM_MIPMAP) && !mipmap->base)
		return &mipmap->tiles;
	return NULL;
}

static CUresult apply(const struct tile_info *info)
{
	struct sim_tile **tiles = tiles_of(info);

	REJECT(!tiles);
	if (info->operation == UNMAP)
		return drop_part(tiles, info->part), CUDA_SUCCESS;
	struct sim_tile *tile = malloc(sizeof *tile);
	if (!tile || info->operation != MAP || !sim_object_is(info->memory, SIM_PHYSICAL) || !info->memory->handles) {
		free(tile);
		return CUDA_ERROR_INVALID_VALUE;
	}
	info->memory->mappings++;
	drop_part(tiles, info->part);
	*tile = (struct sim_tile){.next = *tiles, .memory = info->memory};
	memcpy(tile->part, info->part, sizeof tile->part);
	*tiles = tile;
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

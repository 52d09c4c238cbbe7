/*
 * The structures of arrays and mipmapped arrays, for the files that copy from them, export them or bind textures to
 * them. Creating and destroying arrays stays in cuda/memory/array.c.
 */
#ifndef CUDA_ARRAY_H
#define CUDA_ARRAY_H

#include "cuda/memory/allocation.h"

#define SIM_MAX_LEVELS 18

struct sim_array {
	struct sim_object object;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr base;
	size_t pitch, rows;
	struct sim_tile *tiles;    /* what is mapped to a sparse array, which has no storage */
	struct sim_mipmap *parent; /* set for a level of a mipmap, which uses its parent's storage */
};

struct sim_mipmap {
	struct sim_object object;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr base;
	unsigned count;
	struct sim_array *levels[SIM_MAX_LEVELS]; /* created on first use */
	struct sim_tile *tiles;
};

/* Ends the mappings of a sparse array or mipmapped array. Under the lock. */
void sim_sparse_drop_tiles(struct sim_tile **tiles);

#endif

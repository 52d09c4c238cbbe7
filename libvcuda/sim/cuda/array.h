#ifndef CUDA_ARRAY_H
#define CUDA_ARRAY_H

#include "cuda/work.h"

#define SIM_MAX_LEVELS 18

struct sim_array {
	struct sim_object object;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr base;
	size_t pitch, rows;
	struct sim_mipmap *parent; /* of a level, whose storage is not its own */
};

struct sim_mipmap {
	struct sim_object object;
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	CUdeviceptr base;
	unsigned count;
	struct sim_array *levels[SIM_MAX_LEVELS]; /* made when asked for */
};

/* Base, pitch and rows of an array as one side of a copy. */
CUresult sim_array_side(CUarray array, struct sim_side *side);

#endif

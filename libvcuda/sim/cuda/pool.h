/*
 * What pools offer to the other files of cuda/: taking and returning bytes, finding the pool of a place, and the checks
 * of their handles. cuda/pool.c and cuda/pool_place.c contain the functions.
 */
#ifndef CUDA_POOL_H
#define CUDA_POOL_H

#include "cuda/cuda_sim.h"

/* Takes bytes from a pool, charging the card for what the pool has not kept, and returns them. Under the lock. */
CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes);
void sim_pool_give(struct sim_pool *pool, uint64_t bytes);
/* Under the lock. */
struct sim_pool *sim_pool_new(CUdevice device, enum sim_memory memory);
/* The pool that is set for a place and a kind of memory. */
struct sim_pool **sim_pool_place_in_force(CUdevice device, enum sim_memory memory);
/* The default pool of a place and a kind of memory, made on first use, or the pool that is set. */
struct sim_pool *sim_pool_place_standing(CUdevice device, enum sim_memory memory, bool wants_default);
bool sim_pool_place_is_default(const struct sim_pool *pool);
/* The kind of memory and the device of a location and a type of allocation; an error if there are none. */
CUresult sim_pool_place(const CUmemLocation *location, int type, CUdevice *device, enum sim_memory *memory);
CUresult sim_pool_lock(CUmemoryPool pool);

#endif

#ifndef CUDA_POOL_H
#define CUDA_POOL_H

#include "cuda/cuda_sim.h"

/* Take bytes of a pool, charging the card for what the pool has not kept; and give them back. Under the lock. */
CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes);
void sim_pool_give(struct sim_pool *pool, uint64_t bytes);
/* Under the lock. */
struct sim_pool *sim_pool_new(CUdevice device, enum sim_memory memory);
/* The pool that stands for a place and a kind of memory: a default one, made when first asked for, or another. */
struct sim_pool **sim_pool_in_force(CUdevice device, enum sim_memory memory);
struct sim_pool *sim_pool_standing(CUdevice device, enum sim_memory memory, bool wants_default);
bool sim_pool_is_default(const struct sim_pool *pool);
/* What a location and a type of allocation mean; an error if they mean nothing here. */
CUresult sim_pool_place(const CUmemLocation *location, int type, CUdevice *device, enum sim_memory *memory);
CUresult sim_lock_pool(CUmemoryPool pool);

#endif

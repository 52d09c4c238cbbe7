#ifndef CUDA_POOL_H
#define CUDA_POOL_H

#include "cuda_sim.h"

/* Take bytes of a pool, charging the card for what the pool has not kept; and give them back. Under the lock. */
CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes);
void sim_pool_give(struct sim_pool *pool, uint64_t bytes);
struct sim_pool *sim_pool_new(CUdevice device); /* under the lock */
CUresult sim_lock_pool(CUmemoryPool pool);

#endif

/*
 * What an allocation takes of its card: whole blocks where the profile has them, and small ones share a block.
 */
#ifndef CUDA_BLOCK_H
#define CUDA_BLOCK_H

#include "cuda/memory/allocation.h"

/* The bytes of an allocation by itself. */
uint64_t sim_block_round(uint64_t size, unsigned card);
/* Charges the card for the allocation. Under the lock. */
CUresult sim_block_take(struct sim_allocation *allocation);
void sim_block_give(struct sim_allocation *allocation);

#endif

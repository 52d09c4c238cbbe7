/*
 * What pools offer to the other files of cuda/: making and ending them, finding the pool of a place, and the checks of
 * their handles.
 */
#ifndef CUDA_POOL_H
#define CUDA_POOL_H

#include "cuda/memory/allocation.h"

struct sim_pool {
	struct sim_object object;
	CUdevice device; /* 0 for a pool of host memory */
	enum sim_memory memory; /* kind of memory that the pool hands out */
	const struct sim_payer *payer; /* of its allocations */
	bool doomed; /* destroyed by the program: freed with its last allocation */
	bool is_imported; /* another process' pool: nothing is allocated from it here */
	int handle_types; /* handle types that it may be exported as */
	unsigned char access[SIM_MAX_CARDS]; /* of other devices, by their number */
	struct sim_allocation *allocations;
	struct sim_pool *next; /* of the same device */
	uint64_t settings[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD + 1];
	uint64_t used;
	uint64_t high;
	uint64_t reserved; /* charged: bytes in use, and freed bytes that are kept up to the release threshold */
	uint64_t reserved_high;
};

/* Pools and graph memory take and give back whole chunks, where the profile has chunks. */
uint64_t sim_pool_chunks(uint64_t bytes);
/* Under the lock, all but sim_pool_of_place. */
struct sim_pool *sim_pool_new(CUdevice device, enum sim_memory memory);
/* The pool takes no further allocation, and ends with its last one. */
void sim_pool_destroy(struct sim_pool *pool);
/* Gives back what it keeps beyond `keep`. */
void sim_pool_shrink(struct sim_pool *pool, uint64_t keep);
/* The pool that is set for a place and a kind of memory. */
struct sim_pool **sim_pool_in_force(CUdevice device, enum sim_memory memory);
/* The default pool of a place and a kind of memory, made on first use, or the pool that is set. */
struct sim_pool *sim_pool_standing(CUdevice device, enum sim_memory memory, bool wants_default);
bool sim_pool_is_default(const struct sim_pool *pool);
/* The kind of memory and the device of a location and a type of allocation; an error if there are none. */
CUresult sim_pool_of_place(const CUmemLocation *location, int type, CUdevice *device, enum sim_memory *memory);
/* Locks and checks. */
CUresult sim_pool_lock(CUmemoryPool pool);

#endif

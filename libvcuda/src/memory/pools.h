/*
 * The driver's memory pools of this process: a card's limit is charged with what a pool has reserved of the card, not
 * with what the program holds of the pool, since a pool keeps what is freed into it until it is trimmed.
 *
 * Belongs here: pools of stream-ordered memory (cuMemAllocAsync) and each device's pool of graph memory. A booking
 * never falls below what the driver says is reserved plus what calls under way may add; it follows the driver down
 * when pools are settled: at each of the process's allocations, frees, synchronizations and questions for free memory.
 */
#ifndef VCUDA_POOLS_H
#define VCUDA_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "memory/graph_launches.h"

struct pool;

struct pool_charge {
	struct pool *pool; /* NULL: nothing is booked */
	uint64_t booked;
	uint64_t size;
	struct launched *launched; /* of graphs; NULL: not launched */
};

/* The pool's record; NULL: the driver does not tell what it holds, or its device has no limit. Guard held. */
struct pool *pools_of_handle(CUmemoryPool handle, CUdevice device);
struct pool *pools_of_graphs(CUdevice device);

CUdevice pools_device_of(const struct pool *pool);

/* The device that an explicitly made or default pool allocates on; NO_DEVICE: not known, or not a device. */
CUdevice pools_device(CUmemoryPool handle);
void pools_made(CUmemoryPool handle, const CUmemLocation *location, int type);

/*
 * Memory of the host costs the card nothing; managed memory is charged as cuMemAllocManaged charges it, by allocation
 * and to the current card: what its pool has reserved may lie anywhere.
 */
bool pools_is_hosts(CUmemoryPool handle);
void pools_gone(CUmemoryPool handle);

/*
 * The program destroys a pool. True: memory of it is in use, and would be nobody's with the driver's handle gone, so it
 * is destroyed when it is empty; the driver must not be asked to.
 */
bool pools_doom(CUmemoryPool handle);

/*
 * Books what the pool may grow by when it gives out `size` bytes more. False: neither the limit nor, after trimming,
 * the pool's own reserve has room.
 */
bool pools_begin(struct pool_charge *charge, struct pool *pool, uint64_t size);

/* The call is over: books what the pools of the call really hold now. False: more than there is room for. */
bool pools_end(struct pool_charge *charge, struct pool *used);

/*
 * The same around calls that make, upload or launch a graph (memory/graph_launches.h); with `exec` NULL one is made. What a launch
 * may take is booked from the call on until its stream has run it. False: the limit has no room for it.
 */
bool pools_begin_graph(struct pool_charge *charge, struct pool *pool, const struct graph_memory *graph);
void pools_end_graph(struct pool_charge *charge, struct launched_mark mark);
void pools_graph_gone(CUgraphExec exec);
void pools_drop_context(CUcontext context);

/* Waits, for a second at most, for graphs that may still take memory of the card. False: there was none. */
bool pools_wait_for_graphs(int card);
int pools_card_of(const struct pool *pool);

/* Gives back what the card's pools keep unused, since it is wanted elsewhere. False: there is no pool on it. */
bool pools_reclaim(int card);

/* Books what each pool holds now. */
void pools_settle(void);

/* As above if something was freed into a pool and is not given back yet; costs one load otherwise. */
void pools_settle_if_dirty(void);
void pools_freed(void);

#endif

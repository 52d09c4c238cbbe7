/*
 * The driver's memory pools of this process. libvcuda charges the card's limit with what a pool has reserved of the
 * card, not with what the program holds of the pool: a pool keeps freed memory until it is trimmed.
 *
 * Belongs here: the charges for pools of stream-ordered memory (cuMemAllocAsync) and for each device's pool of graph
 * memory. A booking never falls below what the driver reports as reserved plus what calls under way may add.
 * pools_reconcile lowers it to that: at each of the process's allocations, frees, synchronizations and queries for free
 * memory. Not here: allocations outside pools (memory/charge.h).
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
	bool tries;        /* the limit has room for what was asked, and perhaps not for what the pool takes */
	uint64_t chunk;    /* of a call that tries: what was known of chunks before it */
	uint64_t reserved; /* of a call that tries: what the pool had then */
	struct graph_launch *graph_launch; /* for a graph; NULL: the call launches none */
};

/* The pool's record. NULL: the driver does not report what it holds, or its device has no limit. Guard held. */
struct pool *pools_of_handle(CUmemoryPool handle, CUdevice device);
struct pool *pools_of_graphs(CUdevice device);

CUdevice pools_device_of(const struct pool *pool);

/* The device on which an explicitly made or default pool allocates. NO_DEVICE: it is unknown, or no device. */
CUdevice pools_device(CUmemoryPool handle);
void pools_made(CUmemoryPool handle, const CUmemLocation *location, int type);

/*
 * Whether the pool's memory is the host's, which costs the card nothing. A pool of managed memory is charged as
 * cuMemAllocManaged is, by allocation: what the pool has reserved may lie anywhere. It counts for the device that the pool
 * prefers. NO_DEVICE: the pool is none of managed memory, or prefers no device, so it counts for the current one.
 */
bool pools_is_hosts(CUmemoryPool handle);
bool pools_is_managed(CUmemoryPool handle);
CUdevice pools_preferred(CUmemoryPool handle);
void pools_gone(CUmemoryPool handle);

/*
 * The program destroys a pool. True: memory of the pool is in use. Without the driver's handle that memory could not be
 * accounted, so libvcuda destroys the pool once it is empty, and the wrapper must not call the driver.
 */
bool pools_doom(CUmemoryPool handle);

/*
 * Books what the pool may grow by when it gives out another `size` bytes. False: neither the limit nor, after trimming,
 * the pool's own reserve has room.
 */
bool pools_begin(struct pool_charge *charge, struct pool *pool, uint64_t size);

/* Ends the call and books what its pools really hold now. False: they hold more than the limit has room for. */
bool pools_end(struct pool_charge *charge, struct pool *used);

/*
 * The same around calls that instantiate, upload or launch a graph (memory/graph_launches.h). `exec` NULL: the call
 * instantiates it. What a launch may take stays booked until its stream has run it. False: the limit has no room for
 * it.
 */
bool pools_begin_graph(struct pool_charge *charge, struct pool *pool, const struct graph_memory *graph);
void pools_end_graph(struct pool_charge *charge, struct graph_launch_mark mark);
void pools_graph_gone(CUgraphExec exec);
void pools_drop_context(CUcontext context);

/* Waits, for a second at most, for graphs that may still take memory of the card. */
void pools_wait_for_graphs(int card);
int pools_card_of(const struct pool *pool);

/* Trims the card's pools, for a caller that needs the room. False: the card has no pool. */
bool pools_reclaim(int card);

/* Sets each booking to what the pool holds now. */
void pools_reconcile(void);

/*
 * Before a synchronization with the stream: whether a pool may give memory back by its end, so that the caller reconciles
 * then. Costs two loads.
 */
#define EVERY_STREAM ((CUstream)(uintptr_t)-1)
#define SOME_STREAM NULL
bool pools_synchronizing(CUstream stream);

/* The stream frees memory into a pool when it gets there. */
void pools_freed(CUstream stream);

#endif

/*
 * Stream-ordered frees of managed memory, which the driver has no call for: memory that stood in for a pool's when the
 * card was full. An event in the stream marks where it may go, and it goes at the process's next allocation, free,
 * synchronization or question after that; until then it is charged. Nothing waits inside a free: the stream's work may
 * wait for what the calling thread does next.
 */
#ifndef VCUDA_DEFERRED_H
#define VCUDA_DEFERRED_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "memory/allocations.h"

/* Takes the entry, whose pointer is freed after what the stream has to do now. Guard held. */
CUresult deferred_free(struct allocation *entry, CUstream stream);

/* Frees what may go by now; costs one load when there is nothing. Guard held. */
void deferred_settle(void);

/*
 * As above when the room is wanted: waits for the streams, a second at most, as the driver waits for its pools. False:
 * nothing was freed. Guard held.
 */
bool deferred_reclaim(void);

/* The context is destroyed, and with it the memory and the events. */
void deferred_drop_context(CUcontext context);

#endif

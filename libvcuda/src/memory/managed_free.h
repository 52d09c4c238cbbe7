/*
 * Stream-ordered frees of the managed-memory fallback for pools. The driver has no call that frees managed memory in
 * stream order.
 *
 * An event in the stream marks the point after which the memory may be freed. The process's next allocation, free,
 * synchronization or query for free memory after that point frees it; until then the memory stays charged. A free
 * itself does not wait: the stream's work may depend on what the calling thread does next.
 */
#ifndef VCUDA_MANAGED_FREE_H
#define VCUDA_MANAGED_FREE_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "memory/allocations.h"

/*
 * Takes over the entry and frees its pointer after the stream's present work. False: the stream takes no event, as one of
 * another context. Called with the guard held.
 */
bool managed_free_after(struct allocation *entry, CUstream stream);

/* Frees what may be freed by now. Costs one load when nothing is pending. Called with the guard held. */
void managed_free_complete(void);

/*
 * The same for a caller that needs the room: waits for the streams, for a second at most, as the driver waits for its
 * pools. False: nothing was freed. Called with the guard held.
 */
bool managed_free_reclaim(void);

/* The context was destroyed, and with it the memory and the events. */
void managed_free_drop_context(CUcontext context);

#endif

/*
 * Semaphores: a word in the host's memory for each stream slot, for whose values the card waits in the slot's stream.
 *
 * Belongs here: the words, waits for them, and releasing these. Not what is behind a wait (compute/batch.h), for whom there are
 * any (compute/held.h), nor when they are released (compute/releaser.h).
 */
#ifndef VCUDA_SEMAPHORES_H
#define VCUDA_SEMAPHORES_H

#include "compute/contexts.h"

/*
 * Makes the stream wait for the next value of the slot's semaphore. Returns that value; 0: the driver has refused. The caller
 * holds the context's lock.
 */
uint32_t semaphores_acquire(struct compute_context *context, struct stream_slot *slot, CUstream stream);

/* Releases all that waits for this value or a lower one. */
void semaphores_release(struct compute_context *context, const struct stream_slot *slot, uint32_t value);

/* Releases all that waits in the context, or in the process, without a lock. */
void semaphores_release_context(struct compute_context *context);
void semaphores_release_all(void);

#endif

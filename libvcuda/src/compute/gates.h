/*
 * Gates: places in a stream at which the card waits for a word in the host's memory.
 *
 * Belongs here: the words, and putting and opening gates. Not what is behind them (compute/batch.h), for whom there are any
 * (compute/held.h), nor who opens them and when (compute/gate_keeper.h).
 */
#ifndef VCUDA_GATES_H
#define VCUDA_GATES_H

#include "compute/contexts.h"

/* Puts a gate into the stream. Returns the value of the slot's word that opens it; 0: it could not be made. Under the lock. */
uint32_t gates_put(struct compute_context *context, struct stream_slot *slot, CUstream stream);

/* Opens the slot's gates up to this one. */
void gates_open(struct compute_context *context, const struct stream_slot *slot, uint32_t gate);

/* Opens all gates of the context, or of the process, without a lock. */
void gates_open_in(struct compute_context *context);
void gates_open_all(void);

#endif

/*
 * The events of a context, and when they happened: the card's clock, on this process's clock.
 *
 * Belongs here: taking events, recording them, and their times. Not what lies between two events
 * (compute/batch_complete.c). The caller of every function holds the context's lock. A thread that records has the
 * context current.
 */
#ifndef VCUDA_CARD_CLOCK_H
#define VCUDA_CARD_CLOCK_H

#include "compute/contexts.h"

/* Records an event into the stream and returns it. NULL: no event could be recorded. */
CUevent card_clock_record(struct compute_context *context, CUstream stream);

/* Takes back an event that is not needed any more. */
void card_clock_put_event(struct compute_context *context, CUevent event);

/* Returns the event's time, which lies between `recorded` and `now`. These bounds also correct the clocks' offset. */
uint64_t card_clock_time_of(struct compute_context *context, CUevent event, uint64_t recorded, uint64_t now);

/* Makes the batch's start event the base from which times are counted, if the present base is old. */
void card_clock_renew_base(struct compute_context *context, struct batch *batch, uint64_t now);

#endif

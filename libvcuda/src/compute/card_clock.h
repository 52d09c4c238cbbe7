/*
 * Events of a context, and when they were: the card's clock on this process's.
 *
 * Belongs here: taking events, recording them, and their times. Every function: with the context's lock; those that
 * record, in a thread that has the context.
 */
#ifndef VCUDA_CARD_EVENTS_H
#define VCUDA_CARD_EVENTS_H

#include "compute/contexts.h"

/* An event, recorded into the stream; NULL: none is to be had. */
CUevent card_record(struct core_context *context, CUstream stream);

/* It is not needed any more. */
void card_put_event(struct core_context *context, CUevent event);

/* The event's time. It was recorded at `recorded` and is known to be past at `now`: that sets the clocks right. */
uint64_t card_time_of(struct core_context *context, CUevent event, uint64_t recorded, uint64_t now);

/* A start event of late becomes the one that times are counted from. */
void card_renew_base(struct core_context *context, struct batch *batch, uint64_t now);

#endif

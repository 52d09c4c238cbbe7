/*
 * Where a launch waits until the container may use the card. Every wait is bounded, and a change of the limits ends it.
 *
 * Belongs here: how a launch waits, and when it is let through without tokens. Not whether it may begin
 * (compute/admission.h).
 */
#ifndef VCUDA_THROTTLE_H
#define VCUDA_THROTTLE_H

#include <stdint.h>

#include "compute/batch.h"

/*
 * Waits until the launch, requested at `now`, may be made, and reserves its estimate of then. Returns the new time. Or holds
 * it: reserves nothing, and marks it `is_held` (compute/held.h).
 */
uint64_t throttle_launch(struct launch *launch, uint64_t now);

/* Waits in the place of what is held. *is_late, if it is set: what is under way may wait for that. */
uint64_t throttle_held(struct launch *launch, uint64_t now, bool *is_late);

#endif

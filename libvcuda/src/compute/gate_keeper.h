/*
 * The thread that opens gates (compute/gates.h): for each batch that is held it waits as the program's thread would have. It
 * makes no call of the driver, since in a full stream such a call could wait for the gate.
 *
 * Belongs here: the thread. Not how it waits (compute/throttle.h).
 */
#ifndef VCUDA_GATE_KEEPER_H
#define VCUDA_GATE_KEEPER_H

#include "compute/contexts.h"

/* A launch was put behind a gate. */
void gate_keeper_needed(struct compute_context *context);

/* Called in a forked child, which has no such thread. */
void gate_keeper_reset(void);

#endif

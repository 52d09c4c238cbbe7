/*
 * The thread that releases held work (compute/held.h): for each batch it waits as the program's thread would have. It makes no
 * call of the driver, since in a full stream such a call could wait for the release.
 *
 * Belongs here: the thread. Not how it waits (compute/throttle.h).
 */
#ifndef VCUDA_RELEASER_H
#define VCUDA_RELEASER_H

#include "compute/contexts.h"

/* A launch was held. */
void releaser_needed(struct compute_context *context);

/* Called in a forked child, which has no such thread. */
void releaser_reset(void);

#endif

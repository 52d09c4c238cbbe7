/*
 * The thread that libvcuda starts in a process held to a core share. It completes work that has ended while no
 * other thread does, and sleeps otherwise.
 *
 * Belongs here: the thread, and when it looks. Not how work is completed (compute/batch_complete.h). Launches that wait complete
 * work themselves (compute/throttle.h).
 */
#ifndef VCUDA_POLLER_H
#define VCUDA_POLLER_H

#include <stdint.h>

/* Called when work is under way. A running poller costs a system call only if it sleeps without a deadline. */
void poller_needed(void);

/* Wakes the poller if it would look later than at `time`. */
void poller_look_by(uint64_t time);

/* Called in a forked child, which has no poller. */
void poller_reset(void);

#endif

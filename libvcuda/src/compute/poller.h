/*
 * The one thread that libvcuda starts in a process held to a core share: it looks what has ended while nobody else
 * does, and sleeps otherwise. Launches that wait look for themselves (compute/throttle.h).
 */
#ifndef VCUDA_POLLER_H
#define VCUDA_POLLER_H

/* Something is under way; a system call only if the poller sleeps for good. */
void poller_needed(void);

/* In a forked child: there is none. */
void poller_reset(void);

#endif

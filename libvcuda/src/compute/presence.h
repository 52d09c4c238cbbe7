/*
 * Which containers are at work on this container's cards, and which ones wait for them. The containers of a card have one
 * file that none can write (in VGPU_PRESENCE_DIR), and take read locks on its bytes. A container that is at work on a
 * card locks a byte of its own. A container that waits locks a byte whose offset is the time since which it waits. The
 * kernel keeps the locks: dead processes hold none, no container can remove another's, and each can forge only its own.
 * It goes over all locks of a file at each call. So this one leaves a file for a minute whose calls take too long.
 *
 * The container is present on all of its cards together, so that kernels that wait for each other across them run
 * together.
 *
 * Belongs here: taking, dropping and finding these locks, and waking other containers. Not how long a container waits
 * or stays (compute/container_slice.h).
 */
#ifndef VCUDA_PRESENCE_H
#define VCUDA_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/clock.h"

/* Looks for the card's file. Returns the card's number for the next two functions. */
unsigned int presence_card(const uint8_t uuid[16]);

/*
 * Whether the card's file exists, could be opened, and is not left for a while. While another container has a lease on the
 * file, later calls look again, at most once a second. No call waits for that lease.
 */
bool presence_is_available(unsigned int card);

/* Whether the file is left for a while, because its calls take too long. */
bool presence_is_slow(unsigned int card);

/* False: the program had closed a file. They are open again now, and this process has lost its locks. */
bool presence_is_kept(void);

/* Takes the locks that mark the container as at work on its cards. Drops them, and its lease. */
void presence_hold(void);
void presence_drop(void);

/* Lists the offsets of up to `most` locks of other containers at work on the cards. Returns their number. */
unsigned int presence_of_others(uint64_t *where, unsigned int most);

/* Places that differ by less may be the same. */
#define PRESENCE_PLACE ((uint64_t)1 << 16) /* 65 us: the times in the queue wrap around after 200 days */

/* Puts this process into the queue, as waiting since `time` on the host's clock. */
void presence_queue(uint64_t time);

/* Takes it out of the queue. */
void presence_unqueue(uint64_t time);

/*
 * Whether another process has waited for one of the cards since before `time` (UINT64_MAX: at all). *where is the
 * offset of its lock.
 */
bool presence_waiting_before(uint64_t time, uint64_t *where);

/* Whether another process waits for this card. */
bool presence_is_awaited(unsigned int card);

/*
 * The same for a time that is known. Of several such locks on a card, *where is the first. Returns their number on the
 * first card that has any, at most 2.
 */
unsigned int presence_earliest_before(uint64_t time, uint64_t *where);

/* Ignore this lock until its owner drops it. If eight such locks are ignored already, this one is not. */
void presence_ignore(uint64_t where);

/* Stops ignoring the locks that their owners have dropped. True: containers at work are still ignored. */
bool presence_ignores(void);

/* Whether a look since the last call has found a lock that no libvcuda takes, which hides others: one of many bytes. */
bool presence_saw_range(void);

/*
 * Leases: a container that is at work says until when its work should be done, in the host's time, and says so again
 * before that time. One that was stopped cannot.
 */
enum presence_lets { PRESENCE_LETS_ALL = 5, PRESENCE_LETS_NOBODY, PRESENCE_LETS_URGENT };
void presence_lease(uint64_t until, enum presence_lets lets);

/*
 * What the container at work whose lock is at `where` says. LAPSED: nothing since its lease ended. NO_LEASE: it has left
 * since its lock was seen, or the lock is a forged one.
 */
enum presence_lease {
	PRESENCE_NO_LEASE,
	PRESENCE_LAPSED,
	PRESENCE_LEASED,
	PRESENCE_LEASED_LONG,
	PRESENCE_OPEN,
	PRESENCE_OPEN_LONG
};
enum presence_lease presence_lease_of(uint64_t where, uint64_t now);

/* A lease that ends later is a long one. */
#define PRESENCE_LONG ((uint64_t)8 * NS_PER_MS)

/* The longest lease that is believed. */
#define PRESENCE_LEASE_MOST ((uint64_t)2500 * NS_PER_MS)

/* Whether this container's number is lower than those of the other containers at work. */
bool presence_is_before_others(void);

/* Of several cards, the next wait is for the one with the lock at `where`. */
void presence_await(uint64_t where);

/* Waits until a container that leaves wakes this process, whose place in the queue is `time`, or until `until`. */
void presence_wait(uint64_t time, uint64_t until);

/* On each card, wakes the process that is first in the queue. */
void presence_wake_next(void);

/* Called in a forked child, which holds no locks. */
void presence_reset(void);

#endif

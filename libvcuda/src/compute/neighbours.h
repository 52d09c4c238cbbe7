/*
 * Whether this container waits for its neighbours on the card, and for how long it believes them.
 *
 * Belongs here: what this process has seen of the others' locks, and the bounds of what they gain by false ones. Not the
 * locks themselves (compute/presence.h), nor when the container begins, stays and leaves (compute/container_slice.h).
 *
 * One thread at a time calls these functions. Other threads read the words of `neighbours`.
 */
#ifndef VCUDA_NEIGHBOURS_H
#define VCUDA_NEIGHBOURS_H

#include "compute/token_bucket.h"

struct neighbours {
	uint64_t waits_from;      /* since when this process waits for others, by its own clock; 0: it does not */
	bool is_guest;            /* it waits for none whose work lasts long: the hardware may mix their work */
	uint64_t distrusts_until; /* until then this process waits for no other container, whatever they lock */
};

extern struct neighbours neighbours;

/*
 * Whether this process, whose place in the queue is `place`, waits for others. `goes_on`: the container's slice goes on,
 * so that the queue does not count. *is_next: it is to look often.
 */
enum neighbours_want { NEIGHBOURS_WANT_ROOM, NEIGHBOURS_WANT_SOON, NEIGHBOURS_WANT_ALONE };
bool neighbours_must_wait(struct token_bucket *bucket, uint64_t place, bool goes_on, enum neighbours_want want,
			  uint64_t now, bool *is_next);

/* Whether this process waits for no other container now. */
bool neighbours_are_distrusted(uint64_t now);

/* Whether a slice that began at `began` ends early for a container that waits at an earlier place. */
bool neighbours_may_end_slice(const struct token_bucket *bucket, uint64_t began, uint64_t now);

/* Called in a forked child. */
void neighbours_reset(void);

#endif

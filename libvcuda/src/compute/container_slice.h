/*
 * The container's time slices on its cards. Of the containers that share a card, one works at a time. The container
 * that has waited longest runs next. Its slice is as long as its tokens allow, and ends earlier when it has no work or
 * no tokens. So what a container measures during its slice is its own work.
 *
 * Each container's own libvcuda keeps it to this, as it keeps it to its share. No container waits longer than
 * `patience` for one that does not leave.
 *
 * Belongs here: when the container begins, stays, waits and leaves. Not the locks by which containers see each other
 * (compute/presence.h), nor the time slices of its processes within its own (compute/process_slice.h).
 */
#ifndef VCUDA_VISIT_H
#define VCUDA_VISIT_H

#include "compute/schedule.h"

struct visit {
	uint32_t present;     /* this process holds the locks that mark the container as at work */
	uint32_t is_mixed;    /* another container may be at work at the same time */
	uint32_t is_over;     /* a launch found no time left in the slice while others wait */
	uint64_t waits_from;  /* since when this process waits for others, by its own clock; 0: it does not */
	uint64_t distrusts_until; /* until then this process waits for no other container, whatever they lock */
	uint64_t queued;      /* since when this process is in the queue, in the host's time; 0: it is not */
};

extern struct visit visit;

/* Requests a time slice, or more of the present one. *again as in bucket_try. */
bool visit_ask(struct bucket *bucket, uint64_t now, uint64_t *again);

/* Whether this process holds the cards for the container while other containers wait. */
bool visit_is_awaited(void);

/* Takes this process out of the queue. */
void visit_unqueue(void);

/* Leaves the cards if there is no reason to stay. Returns when to call again. UINT64_MAX: when work ends. */
uint64_t visit_tidy(struct bucket *const *buckets, unsigned int count, uint64_t now);

/* Called in a forked child, which has no slice. */
void visit_reset(void);

/* Whether other containers share the card, and the presence file exists by which they avoid each other. */
static inline bool has_neighbours(const struct bucket *bucket)
{
	return LOAD(bucket->times.tenants) > 1 && bucket->has_presence;
}

/* The tokens that a throttled container waits for. A larger threshold means fewer, longer sleeps and fewer slices. */
static inline uint64_t thirst(const struct bucket *bucket, uint64_t now)
{
	return has_neighbours(bucket) ? ration(bucket, now) / 2 : draught(bucket, now);
}

static inline bool may_visit(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!has_neighbours(bucket))
		return true;
	if (LOAD(visit.present) && most(LOAD(bucket->finish), now) < LOAD(bucket->shared.visit->until))
		return true;
	return visit_ask(bucket, now, again);
}

#endif

/*
 * The container's visits to its cards. Of the containers that share a card one at a time works there: who waits longest is
 * next, stays for what it is owed, and goes when that is over, when it has no work, or when its account is empty. So what
 * it measures meanwhile is its own work. All are bound to this by their own libvcuda, as to the share itself; a container
 * that does not go is waited for no longer than `patience`.
 *
 * Within the container the visit is one: its processes take turns in it (compute/process_slice.h).
 */
#ifndef VCUDA_VISIT_H
#define VCUDA_VISIT_H

#include "compute/schedule.h"

struct visit {
	uint32_t present;     /* this process has said that the container is at work */
	uint32_t is_mixed;    /* somebody else is, too, for all that is known */
	uint32_t is_over;     /* a launch found no time left in it, while others wait */
	uint64_t waits_from;  /* since when this process waits for others, by its own clock; 0: it does not */
	uint64_t distrusts_until; /* until then others are not waited for, whatever they say */
	uint64_t queued;      /* this process stands in line since then, of the host's time; 0: it does not */
};

extern struct visit visit;

/* Asks for a visit, or for more of it; *again as in bucket_try. */
bool visit_ask(struct bucket *bucket, uint64_t now, uint64_t *again);

/* The container is there by this process, and others wait. */
bool visit_is_awaited(void);

/* This process no longer waits for one. */
void visit_unqueue(void);

/* Goes, if there is no reason to stay; when to ask again, UINT64_MAX: when something ends. */
uint64_t visit_tidy(struct bucket *const *buckets, unsigned int count, uint64_t now);

/* In a forked child. */
void visit_reset(void);

/* Other containers share the card, and there are means to keep out of each other's way. */
static inline bool has_neighbours(const struct bucket *bucket)
{
	return LOAD(bucket->times.tenants) > 1 && bucket->has_presence;
}

/* How much has to be there after the account was empty: fewer, longer sleeps, and fewer visits. */
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

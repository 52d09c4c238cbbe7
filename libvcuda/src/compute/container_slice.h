/*
 * The container's time slices on its cards. Of the containers that share a card, one works at a time. The container
 * that has waited longest runs next. Its slice is as long as its tokens allow, and ends earlier when it has no work or
 * no tokens. So what a container measures during its slice is its own work.
 *
 * Each container's own libvcuda keeps it to this, as it keeps it to its share. A container at work has a lease: it says
 * until when its work should be done, and says so again in time. Others do not wait for one whose lease has lapsed.
 *
 * Belongs here: when the container begins, stays, waits and leaves. Not the locks by which containers see each other
 * (compute/presence.h), for whom it waits (compute/neighbours.h), nor the time slices of its processes within its own
 * (compute/process_slice.h).
 */
#ifndef VCUDA_CONTAINER_SLICE_H
#define VCUDA_CONTAINER_SLICE_H

#include "compute/schedule.h"

struct container_slice {
	uint32_t present;     /* this process holds the locks that mark the container as at work */
	uint32_t is_mixed;    /* another container may be at work at the same time */
	uint32_t was_mixed;   /* the same at any time since its slice began */
	uint32_t is_over;     /* another container waits that is to run first: no launch may begin */
	uint32_t has_lapsed;  /* its lease had ended before it said the next one: others may have begun */
	uint64_t leased_until; /* when its lease ends, by its own clock */
	uint64_t began;       /* when its slice began */
	uint64_t queued;      /* this process's place in the queue, in the host's time; 0: it is not in the queue */
	uint64_t as_borrower;   /* the place at which it waited last to borrow time, behind all that have tokens */
	uint64_t moved_at;    /* when it last took another place */
	uint64_t next_look;   /* until then launches go on without another look at the queue */
	uint32_t lets_in;     /* its work under way may be mixed: how long it takes is certain */
	uint32_t is_open;     /* others may work beside it (compute/open_slice.h) */
	uint32_t is_urgent;   /* what waits answers a request: it runs beside a launch that takes long */
};

extern struct container_slice container_slice;

/* Whether this process holds the cards for the container while other containers wait. */
bool container_slice_is_awaited(void);

/* Whether other containers share any of the cards, so that the end of this process's work is to be seen at once. */
bool container_slice_may_be_awaited(void);

/*
 * Whether nobody else wants the card now: no other container is at work or waits for what its share owes to it. Of the
 * containers that borrow, each has its turn. Keeps bucket->borrows_from.
 */
bool container_slice_borrows(struct token_bucket *bucket, uint64_t now);

/* Puts this process into the queue, behind all containers that have tokens. */
void container_slice_queue_to_borrow(struct token_bucket *bucket, uint64_t now);

/* Takes this process out of the queue. */
void container_slice_unqueue(const struct token_bucket *bucket);

/* Leaves the cards if there is no reason to stay. Returns when to call again. UINT64_MAX: when work ends. */
uint64_t container_slice_tidy(uint64_t now);

/* Says until when the work that this process has just begun should be done. */
void container_slice_extend_lease(bool is_known, bool is_certain, uint64_t now);

/* Called after work was reserved: whether the container still has its slice, and keeps it until the work has ended. */
bool container_slice_has_begun(const struct token_bucket *bucket);

/* Notes if this process was stopped for so long that other containers may have begun. */
void container_slice_note_lapse(const struct token_bucket *bucket, uint64_t now);

/*
 * Whether another card of this process has nothing to do, and had of late: the thread that launches here may be the one
 * that is to launch there.
 */
bool container_slice_waits_for_launches(const struct token_bucket *bucket, uint64_t now);

/* Called in a forked child, which has no slice. */
void container_slice_reset(void);

/* Whether other containers share the card, and the presence file exists by which they avoid each other. */
bool container_slice_has_neighbours(const struct token_bucket *bucket);

/* Whether other containers share the card, so that this process is to leave it soon when it has no work. */
bool container_slice_leaves_in_pauses(const struct token_bucket *bucket);

/* Whether other containers' work may mix with this container's own. */
bool container_slice_is_mixed(const struct token_bucket *bucket);

/* Whether others may come into its slice, and leave it, unseen between two looks. */
bool container_slice_is_open(const struct token_bucket *bucket);

/* Whether other containers may wait for this container's work to end. */
bool container_slice_is_leaving(const struct token_bucket *bucket);

/* Whether the container may run now: requests a time slice if it needs one. *again as in admission_try. */
bool container_slice_may_run(struct token_bucket *bucket, uint64_t now, uint64_t *again);

#endif

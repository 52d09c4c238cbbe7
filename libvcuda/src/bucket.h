/*
 * A card's time as this container has it: the bucket of ns that all its processes draw from, the phase in which it may
 * work, and whose turn it is among its processes. The model and its parameters: docs/limiter.md.
 *
 * Belongs here: whether work of a given length may begin now, and the account of it. Not what the work is, when it
 * ends, or how to wait (batches.h, gate.h). Everything is atomic: any thread, no lock, no system call.
 */
#ifndef VCUDA_BUCKET_H
#define VCUDA_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "card_page.h"
#include "cuda_abi.h"
#include "usage.h"
#include "vgpu_usage.h"

struct bucket {
	CUdevice device;
	uint8_t uuid[16];
	struct usage_time shared;
	uint64_t limits_seen;
	uint64_t share;        /* percent */
	uint64_t ceiling;      /* percent, while lent */
	const struct vgpu_card_page *page;
	struct card_times times;
	uint64_t page_looked_at;
	uint64_t phase_begin;  /* of the phase that is or comes next; of this process's clock, as all times here */
	uint64_t phase_end;
	uint64_t phase_worked; /* begin of the last phase that was used */
	uint64_t counted_until; /* until when this process' use was counted */
	uint64_t finish;       /* when all that this process has under way will be done */
	uint64_t free_seen;    /* since when the turn is seen free while somebody has waited longer; 0: is not */
	uint32_t fresh;        /* the turn has come to this process and nothing was measured since */
	uint32_t is_thirsty;   /* the bucket was empty: waits for more than a drop */
	uint32_t is_local;     /* no usage region: this process alone is accounted */
};

/* The device's bucket; NULL: the card has no limit. It may be one that is `bucket_is_open`. */
struct bucket *bucket_of_device(CUdevice device);

/* Takes over changed limits. True: an exclusive card, nothing is to be accounted. */
bool bucket_is_open(struct bucket *bucket);

/* Forgets everything: in a forked child. */
void buckets_reset(void);

/* Reserves `estimate` ns if work of that length, as far as known, may begin now; if not, *again is when to ask next. */
bool bucket_try(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again);

/* Reserves, come what may. */
void bucket_force(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now);

/* What was reserved is not needed: nothing was begun. */
void bucket_release(struct bucket *bucket, uint64_t estimate);

/* While work runs: it has taken more than was booked. */
void bucket_book(struct bucket *bucket, uint64_t more, uint64_t now);

/* Work for which `reserved` was reserved and `booked` stands in the account ended, having used `used`. */
void bucket_settle(struct bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t now);

/* The part of [from, to) that was not counted yet for any work of this process. */
uint64_t bucket_uncounted(struct bucket *bucket, uint64_t from, uint64_t to);

/* What was counted until `from`, by the last who counted, is so only until `to`. */
void bucket_count_back(struct bucket *bucket, uint64_t from, uint64_t to);

/* ns of [from, to) outside of the container's own phase, when it has one. */
uint64_t bucket_outside(const struct bucket *bucket, uint64_t from, uint64_t to);

/* Where in a phase work begins: early, what another container had under way may be in between. The first asks first. */
enum bucket_edge { WITHIN_PHASE, FIRST_IN_PHASE, EARLY_IN_PHASE };
enum bucket_edge bucket_edge(struct bucket *bucket, uint64_t now);

/* This process wants the card's time: told to the host, */
void bucket_wants(struct bucket *bucket, uint64_t now);

/* and to the container's other processes when a launch waits: the word is woken when it is this one's turn. */
uint32_t *bucket_waits(struct bucket *bucket, uint64_t now);
void bucket_waits_no_more(struct bucket *bucket);

/* Launches of the container's other processes wait. */
bool bucket_others_wait(const struct bucket *bucket);

/*
 * Another process of the container has work under way that should have ended: it may wait for what waits here. True once
 * in so long a time, for one that waits.
 */
bool bucket_others_stuck(const struct bucket *bucket, uint64_t now);

/* A kernel took that long. */
void bucket_measured(struct bucket *bucket, uint64_t ns);

#endif

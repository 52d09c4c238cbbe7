/*
 * A card's time as this container has it: the bucket of ns that all its processes draw from, whose turn it is among them,
 * and whether other containers are in the way (compute/container_slice.h). The model and its parameters: docs/limiter.md.
 *
 * Belongs here: whether work of a given length may begin now, and the account of it. Not what the work is, when it
 * ends, or how to wait (compute/batch.h, compute/throttle.h). Everything is atomic: any thread, no lock, no system call.
 */
#ifndef VCUDA_BUCKET_H
#define VCUDA_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/limits_file.h"
#include "shared/schedule_file.h"
#include "shared/usage.h"
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
	uint64_t counted_until; /* until when this process' use was counted */
	uint64_t finish;       /* when all that this process has under way will be done */
	uint64_t free_seen;    /* since when the turn is seen free while somebody has waited longer; 0: is not */
	uint32_t in_flight;    /* reserved by this process for work under way, in VGPU_USAGE_TIME_UNIT */
	uint32_t fresh;        /* the turn has come to this process and nothing was measured since */
	uint32_t is_thirsty;   /* the bucket was empty: waits for more than a drop */
	uint32_t has_presence;   /* the node's containers tell each other who is at work */
	uint32_t is_local;     /* no usage region: this process alone is accounted */
};

/* The device's bucket; NULL: the card has no limit. It may be one that is `bucket_is_open`. */
struct bucket *bucket_of_device(CUdevice device);

/* The limits changed. A card that is no longer listed keeps its last ones. */
void bucket_take_over_limits(struct bucket *bucket);

/* Takes over changed limits. True: an exclusive card, nothing is to be accounted. */
static inline bool bucket_is_open(struct bucket *bucket)
{
	if (limits_sequence() != __atomic_load_n(&bucket->limits_seen, __ATOMIC_RELAXED))
		bucket_take_over_limits(bucket);
	return __atomic_load_n(&bucket->share, __ATOMIC_RELAXED) >= 100;
}

/* Forgets everything: in a forked child. */
void buckets_reset(void);

/* Reserves `estimate` ns if work of that length, as far as known, may begin now; if not, *again is when to ask next. */
bool bucket_try(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again);

/* Reserves, come what may. */
void bucket_force(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now);

/*
 * Reserves for what may follow at once, where nothing that would hold it up is near: so many ns, which launches may
 * take until *until without asking. 0: they have to ask. What they left goes back.
 */
uint64_t bucket_spare(struct bucket *bucket, uint64_t now, uint64_t *until);
void bucket_spare_back(struct bucket *bucket, uint64_t left);

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

/* Whether other containers' work may lie between this container's own. */
bool bucket_is_mixed(const struct bucket *bucket);

/* What the launch waits for now are other containers, by presence_word(). */
bool bucket_waits_for_others(const struct bucket *bucket);

/* Others may wait for its work to end. */
bool bucket_is_leaving(const struct bucket *bucket, uint64_t now);

/* Leaves the cards to others where there is no reason to stay; when to ask again, UINT64_MAX: when something ends. */
uint64_t buckets_tidy(uint64_t now);

/* This process wants the card's time: told to the host, */
void bucket_wants(struct bucket *bucket, uint64_t now);

/* and to the container's other processes when a launch waits: the word is woken when it is this one's turn. */
uint32_t *bucket_waits(struct bucket *bucket, uint64_t now);
void bucket_waits_no_more(struct bucket *bucket);

/* Launches of the container's other processes wait, or other containers. */
bool bucket_others_wait(const struct bucket *bucket);

/*
 * Another process of the container has work under way that should have ended: it may wait for what waits here. True once
 * in so long a time, for one that waits.
 */
bool bucket_others_stuck(const struct bucket *bucket, uint64_t now);

/* A kernel took that long. */
void bucket_measured(struct bucket *bucket, uint64_t ns);

#endif

/*
 * The container's token bucket on a card. A token is a ns of the card's time, and all processes of the container take
 * from the same bucket. docs/compute-limit.md has the model and its parameters.
 *
 * Belongs here: the bucket of each device, its account (the tokens that time adds and that work uses), and whether work
 * of a given length may begin now. Work may begin when there are tokens, this process has a time slice
 * (compute/process_slice.h), and so has the container (compute/container_slice.h). Not the rate at which tokens are
 * added (compute/schedule.h), nor what the work is, when it ends, or how to wait (compute/batch.h, compute/throttle.h).
 *
 * All words are atomic: any thread may call any function, and the bucket itself takes no lock and makes no system call.
 */
#ifndef VCUDA_TOKEN_BUCKET_H
#define VCUDA_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/atomics.h"
#include "base/bounds.h"
#include "cuda_abi.h"
#include "driver/clock.h"
#include "shared/limits.h"
#include "shared/schedule_file.h"
#include "shared/usage.h"
#include "vgpu_usage.h"

struct token_bucket {
	CUdevice device;
	uint8_t uuid[16];
	struct usage_time shared;
	uint64_t limits_seen;
	uint64_t share;        /* percent */
	uint64_t ceiling;      /* percent, while lent */
	const struct vgpu_card_page *published;
	struct card_schedule schedule;
	uint64_t schedule_looked_at;
	uint64_t counted_until; /* until when this process's use was counted */
	uint64_t finish;       /* when all work that this process has under way should be done */
	uint64_t paused_at;    /* when the program last launched after a pause; 0: never yet */
	uint64_t mean_pause;   /* ns between the end of all work and the next launch, a moving mean */
	uint64_t late_after_change;   /* ns between a launch and the work's end, less the work's own time; 0: not measured */
	uint64_t late_without_change;
	uint32_t unsure;       /* by how much batches end before their estimate, of 256, a moving mean */
	uint64_t borrows_from; /* since when nobody else has wanted the card, for a soft share; 0: somebody does */
	uint64_t line_seen;    /* when it was last looked at who wants the card */
	uint64_t free_seen;    /* since when the slice is free while another process has waited longer; 0: it is not */
	uint32_t in_flight;    /* reserved by this process for work under way, in VGPU_USAGE_TIME_UNIT */
	uint32_t has_new_slice;        /* a time slice has begun and nothing was measured since */
	uint32_t is_throttled;   /* throttled: the bucket was empty and is not yet filled to the refill threshold */
	uint32_t is_local;     /* no usage region: this process alone is accounted */
};

/* Returns the device's bucket. NULL: the card has no limit. It may be one that token_bucket_is_unlimited. */
struct token_bucket *token_bucket_of_device(CUdevice device);

/* Takes over changed limits. A card that they no longer list keeps its last ones. */
void schedule_take_over_limits(struct token_bucket *bucket);

/* Takes over changed limits. True: the card is exclusive, and nothing is to be accounted. */
static inline bool token_bucket_is_unlimited(struct token_bucket *bucket)
{
	if (limits_sequence() != __atomic_load_n(&bucket->limits_seen, __ATOMIC_RELAXED))
		schedule_take_over_limits(bucket);
	return __atomic_load_n(&bucket->share, __ATOMIC_RELAXED) >= 100;
}

/* Called in a forked child: forgets all buckets. */
void token_bucket_reset_all(void);

/* Reserves `estimate` ns if work of that estimated length may begin now. If not, *again is when to try again. */
bool token_bucket_try(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again);

/* Reserves in any case, even into debt. */
void token_bucket_force(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now);

/*
 * Reserves a local slice and returns its ns: launches may take it until *until without any other call. 0: there is
 * none, because something that would hold up launches is near.
 */
uint64_t token_bucket_take_local_slice(struct token_bucket *bucket, uint64_t now, uint64_t *until);

/* Takes back what launches have left of a local slice. */
void token_bucket_return_local_slice(struct token_bucket *bucket, uint64_t left);

/* Takes back what was reserved for work that was not begun. */
void token_bucket_release(struct token_bucket *bucket, uint64_t estimate);

/* Books `more` ns for work that still runs and has taken more than was booked. */
void token_bucket_book(struct token_bucket *bucket, uint64_t more, uint64_t now);

/* Completes work that used `used`. `reserved` was reserved for it, and `booked` stands in the account so far. */
void token_bucket_complete(struct token_bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used,
			   uint64_t now);

/* Counts the part of [from, to) that was not yet counted for any work of this process. Returns its length. */
uint64_t token_bucket_uncounted(struct token_bucket *bucket, uint64_t from, uint64_t to);

/* Moves the end of the counted time from `from` back to `to`, unless another thread has counted since. */
void token_bucket_count_back(struct token_bucket *bucket, uint64_t from, uint64_t to);

/* Whether other containers share the card, so that this process is to leave it soon when it has no work. */
bool token_bucket_leaves_in_pauses(const struct token_bucket *bucket);

/* Whether other containers' work may mix with this container's own. */
bool token_bucket_is_mixed(const struct token_bucket *bucket);

/* Notes if this process was stopped for so long that other containers may have begun. */
void token_bucket_note_lapse(const struct token_bucket *bucket, uint64_t now);

/* Whether the launch now waits for other containers, by presence_wait(). */
bool token_bucket_waits_for_others(const struct token_bucket *bucket);

/* Whether other containers may wait for this container's work to end. */
bool token_bucket_is_leaving(const struct token_bucket *bucket);

/* Notes that a launch is requested, and for how long the program had no work before it. */
void token_bucket_note_pause(struct token_bucket *bucket, uint64_t now);

/* Leaves the cards if there is no reason to stay. Returns when to call again. UINT64_MAX: when work ends. */
uint64_t token_bucket_tidy_all(uint64_t now);

/* Notes, for the host, that this process wants the card's time. */
void process_slice_wants(struct token_bucket *bucket, uint64_t now);

/*
 * Notes, for the host and the container's other processes, that a launch of this process waits. Returns the futex that
 * another process wakes when this process is next.
 */
uint32_t *process_slice_wait(struct token_bucket *bucket, uint64_t now);
void process_slice_stop_waiting(struct token_bucket *bucket);

/* Whether launches of the container's other processes wait, or other containers. */
bool process_slice_others_wait(const struct token_bucket *bucket);

/*
 * Whether another process of the container has work under way that should have ended: that work may wait for what waits
 * here. Only one waiting launch gets true. After that the answer is false until as much time has passed again.
 */
bool token_bucket_others_stuck(const struct token_bucket *bucket, uint64_t now);

/* Notes how long a kernel took. */
void token_bucket_measured(struct token_bucket *bucket, uint64_t ns);

/* ---- what this process has under way ---- */

static inline struct vgpu_usage_flight *token_bucket_own_flight(const struct token_bucket *bucket)
{
	return &bucket->shared.flights[bucket->shared.slot];
}

static inline uint32_t token_bucket_units(uint64_t ns)
{
	return (uint32_t)((ns + VGPU_USAGE_TIME_UNIT - 1) / VGPU_USAGE_TIME_UNIT);
}

/* Returns the ns that this process has reserved for work under way. */
static inline uint64_t token_bucket_in_flight(const struct token_bucket *bucket)
{
	return (uint64_t)LOAD(bucket->in_flight) * VGPU_USAGE_TIME_UNIT;
}

/* Writes the word that the container's other processes read. This process never reads it. */
static inline void token_bucket_publish_flight(struct token_bucket *bucket)
{
	STORE(token_bucket_own_flight(bucket)->in_flight, LOAD(bucket->in_flight));
}

#endif

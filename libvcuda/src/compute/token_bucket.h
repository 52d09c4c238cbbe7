/*
 * The container's token bucket on a card. A token is a ns of the card's time, and all processes of the container take
 * from the same bucket. docs/compute-limit.md has the model and its parameters.
 *
 * Belongs here: the bucket of each device, and its words. Not what changes them: the rate (compute/schedule.h), the
 * account of tokens (compute/account.h), the time slices (compute/process_slice.h, compute/container_slice.h), nor
 * whether work may begin (compute/admission.h).
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
#include "shared/schedule_file.h"
#include "shared/usage.h"
#include "vgpu_usage.h"

struct token_bucket {
	CUdevice device;
	uint8_t uuid[16];
	unsigned int presence; /* the card's number, see compute/presence.h */
	uint32_t is_local;     /* no usage region: this process alone is accounted */
	struct usage_time shared;
	/* compute/schedule.c: the limits, and the host's schedule */
	uint64_t limits_seen;
	uint64_t share;        /* percent */
	uint64_t ceiling;      /* percent, while lent */
	const struct vgpu_card_page *published;
	struct card_schedule schedule;
	uint64_t schedule_looked_at;
	/* compute/account.c */
	uint64_t counted_until; /* until when this process's use was counted */
	uint64_t finish;       /* when all work that this process has under way should be done */
	uint32_t unsure;       /* by how much batches end before their estimate, of 256, a moving mean */
	uint32_t in_flight;    /* reserved by this process for work under way, in VGPU_USAGE_TIME_UNIT */
	/* compute/admission.c */
	uint32_t is_throttled; /* the bucket was empty and is not yet filled to the refill threshold */
	uint64_t paused_at;    /* when the program last launched after a pause; 0: never yet */
	uint64_t used_at_pause; /* what the container had used then */
	uint64_t kept;         /* ns for which this process has kept the card from others without work */
	uint64_t mean_pause;   /* ns between the end of all work and the next launch, a moving mean */
	/* compute/process_slice.c */
	uint64_t taken_at;  /* when this process took the time slice last */
	uint64_t free_seen; /* since when the slice is free while another process has waited longer; 0: it is not */
	/* compute/container_slice.c */
	uint64_t borrows_from; /* since when nobody else has wanted the card, for a soft share; 0: somebody does */
	int64_t lag;          /* ns of its share by which the container lags */
	uint64_t lag_at, lag_spent; /* when it was counted last, and what had been used until then */
	uint64_t line_seen; /* when it was last looked at who wants the card */
	uint32_t has_new_slice; /* a time slice, also of this process, has begun and nothing was measured since */
	uint32_t was_waited_for; /* that slice, so others have worked before it */
	uint32_t is_awaited;  /* at the latest look the card's only other container waited: nobody else can come */
	int64_t looked_until; /* if it is, launches go on without a look until there are no more tokens than these */
	/* compute/change_cost.c */
	struct change_guess {
		uint64_t ns, samples; /* `ns`: a change takes so long at least; 0: that is not known */
		int64_t mean, deviation;
	} guessed_change;
	/* ns between a launch and the work's end, less the work's own time; 0: not measured */
	struct change_median {
		uint64_t ns, samples;
	} late_after_change, late_without_change, late_on_card; /* the last: after changes, of work that was not held */
};

/* The buckets of the cards that this process uses, as many as token_bucket_count() returns. */
enum { TOKEN_BUCKETS = 64 };
extern struct token_bucket *token_buckets[TOKEN_BUCKETS];
extern unsigned int token_bucket_listed;

static inline unsigned int token_bucket_count(void)
{
	return __atomic_load_n(&token_bucket_listed, __ATOMIC_ACQUIRE);
}

/* Returns the device's bucket. NULL: the card has no limit. It may be one that schedule_is_unlimited. */
struct token_bucket *token_bucket_of_device(CUdevice device);

/* Called in a forked child: forgets all buckets. */
void token_bucket_reset_all(void);

/* ---- what this process has under way ---- */

static inline struct vgpu_usage_flight *token_bucket_own_flight(const struct token_bucket *bucket)
{
	return &bucket->shared.flights[bucket->shared.slot];
}

/* Returns the ns that this process has reserved for work under way. */
static inline uint64_t token_bucket_in_flight(const struct token_bucket *bucket)
{
	return (uint64_t)LOAD(bucket->in_flight) * VGPU_USAGE_TIME_UNIT;
}

#endif

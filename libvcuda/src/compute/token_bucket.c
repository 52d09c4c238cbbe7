/* See compute/token_bucket.h. Tenants can write the times of other processes, so all are taken within bounds. */
#include "compute/token_bucket.h"

#include "compute/bucket_account.h"
#include "compute/container_slice.h"
#include "compute/process_slice.h"

#define PATIENCE (20 * NS_PER_MS)     /* with work on another card: the kernels of a group wait for each other */
#define PATIENCE_HERE NS_PER_S        /* with another process's work on this card: it may just be long */
#define LOCAL_SLICE (64 * NS_PER_US)        /* a local slice: ns of use, and the time for which it is reserved */

static void expect(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	uint64_t finish = bounds_max(LOAD(bucket->finish), now) + estimate;

	STORE(bucket->finish, finish); /* a race of threads makes this estimate a little worse */
	STORE(bucket->shared.time->drains_at, is_known ? finish : finish + PATIENCE);
}

void token_bucket_force(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	__atomic_fetch_sub(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	if (!__atomic_fetch_add(&bucket->in_flight, token_bucket_units(estimate), __ATOMIC_RELAXED))
		STORE(bucket->shared.time->progress, now);
	token_bucket_publish_flight(bucket);
	expect(bucket, estimate, is_known, now);
}

/*
 * Whether the container runs on another of its cards. It runs on all of them together, so that kernels that wait for
 * each other do not wait long.
 */
static bool runs_elsewhere(const struct token_bucket *bucket)
{
	const struct vgpu_usage_flight *flights;
	struct vgpu_usage_time *time;

	for (int i = 0; !bucket->is_local && (time = usage_time_at(i, &flights)); i++) {
		uint64_t holder = LOAD(time->holder);
		if (time != bucket->shared.time && holder && holder <= VGPU_USAGE_SLOTS &&
		    LOAD(flights[holder - 1].in_flight))
			return true;
	}
	return false;
}

/* The back-off: the holder of the time slice tries first or, if there is none, the process that has waited longest. */
static uint64_t back_off(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return 0;
	return (process_slice_is_behind(bucket) ? LATE_LOOK : 0) + (holder && !process_slice_is_over(bucket, now) ? GRACE : 0);
}

static bool has_tokens(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	int64_t tokens = LOAD(bucket->shared.time->level);
	int64_t wanted = LOAD(bucket->is_throttled) ? (int64_t)container_slice_refill_threshold(bucket, now) : 1;

	if (tokens >= wanted) {
		if (wanted != 1)
			STORE(bucket->is_throttled, 0);
		return true;
	}
	if (tokens > -(int64_t)schedule_quota(bucket, now) && runs_elsewhere(bucket))
		return true;
	STORE(bucket->is_throttled, 1);
	wanted = (int64_t)container_slice_refill_threshold(bucket, now);
	*again = now + (uint64_t)(wanted - tokens) * WHOLE / schedule_rate(bucket, now) + back_off(bucket, now);
	return false;
}

static uint64_t run_ahead(const struct token_bucket *bucket, uint64_t now)
{
	return bounds_clamp(schedule_quota(bucket, now) / 2, NS_PER_MS / 2, 10 * NS_PER_MS);
}

/*
 * Whether more work may be under way: enough to keep the card busy, little enough to stop soon. Two kernels may always
 * be, but no more than two that were never measured.
 */
static bool has_room(const struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again)
{
	uint64_t in_flight = token_bucket_in_flight(bucket);
	uint64_t most_in_flight = is_known ? run_ahead(bucket, now) : 0;
	uint64_t finish = LOAD(bucket->finish);

	if (in_flight + estimate <= most_in_flight || in_flight <= estimate + VGPU_USAGE_TIME_UNIT)
		return true;
	uint64_t ends = finish > now ? (in_flight + estimate - most_in_flight) / 2 : (now - finish) / 4;
	*again = now + bounds_clamp(ends, 50 * NS_PER_US, NS_PER_MS);
	return false;
}

bool token_bucket_try(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again)
{
	schedule_follow(bucket, now);
	token_bucket_refill(bucket, now);
	if (!has_tokens(bucket, now, again) || !has_room(bucket, estimate, is_known, now, again) ||
	    !process_slice_has(bucket, now, again)) {
		container_slice_unqueue();
		return false;
	}
	if (!container_slice_may_run(bucket, now, again))
		return false;
	token_bucket_force(bucket, estimate, is_known, now);
	return true;
}

bool token_bucket_is_mixed(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.is_mixed);
}

bool token_bucket_waits_for_others(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.queued);
}

bool token_bucket_is_leaving(const struct token_bucket *bucket, uint64_t now)
{
	return container_slice_has_neighbours(bucket) && (LOAD(bucket->is_throttled) || now >= LOAD(bucket->shared.slice->until));
}

uint64_t token_bucket_take_local_slice(struct token_bucket *bucket, uint64_t now, uint64_t *until)
{
	if (LOAD(bucket->shared.time->holder) != bucket->shared.slot + 1 || process_slice_is_over(bucket, now) ||
	    LOAD(bucket->shared.time->level) < (int64_t)(4 * LOCAL_SLICE) ||
	    token_bucket_in_flight(bucket) + LOCAL_SLICE > run_ahead(bucket, now) / 2 ||
	    (container_slice_has_neighbours(bucket) && (!LOAD(container_slice.present) || now + 2 * LOCAL_SLICE > LOAD(bucket->shared.slice->until))))
		return 0;
	*until = now + LOCAL_SLICE;
	token_bucket_force(bucket, LOCAL_SLICE, true, now);
	return LOCAL_SLICE;
}

void token_bucket_return_local_slice(struct token_bucket *bucket, uint64_t left)
{
	token_bucket_release(bucket, left);
	STORE(bucket->finish, LOAD(bucket->finish) - left);
}

void token_bucket_measured(struct token_bucket *bucket, uint64_t ns)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t longest = LOAD(time->longest);

	STORE(time->longest, bounds_max(ns, longest - longest / 64));
	STORE(time->patience, bounds_max(4 * ns, LOAD(time->patience)));
}

static bool is_holder_stuck(const struct vgpu_usage_time *time, const struct vgpu_usage_flight *flights, uint64_t patience,
		     uint64_t now)
{
	uint64_t progress = LOAD(time->progress), holder = LOAD(time->holder);

	if (!holder || holder > VGPU_USAGE_SLOTS || !LOAD(flights[holder - 1].in_flight))
		return false;
	return progress < now && now - progress > bounds_clamp(LOAD(time->patience), patience, 4 * NS_PER_S);
}

bool token_bucket_others_stuck(const struct token_bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_flight *flights;
	struct vgpu_usage_time *time;

	for (int i = 0; !bucket->is_local && (time = usage_time_at(i, &flights)); i++) {
		bool is_here = time == bucket->shared.time;
		if ((is_here && LOAD(time->holder) == bucket->shared.slot + 1) ||
		    !is_holder_stuck(time, flights, is_here ? PATIENCE_HERE : PATIENCE, now))
			continue;
		STORE(time->progress, now);
		return true;
	}
	return false;
}

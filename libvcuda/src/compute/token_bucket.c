/* See compute/token_bucket.h. Tenants can write the times of other processes, so all are taken within bounds. */
#include "compute/token_bucket.h"

#include "compute/bucket_account.h"
#include "compute/container_slice.h"
#include "compute/process_slice.h"

#define PATIENCE (20 * NS_PER_MS)     /* with work on another card: the kernels of a group wait for each other */
#define PATIENCE_HERE NS_PER_S        /* with another process's work on this card: it may just be long */
#define SPARE (64 * NS_PER_US)        /* a local slice: ns of use, and the time for which it is reserved */

static void expect(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	uint64_t finish = most(LOAD(bucket->finish), now) + estimate;

	STORE(bucket->finish, finish); /* a race of threads makes this estimate a little worse */
	STORE(bucket->shared.time->drains_at, is_known ? finish : finish + PATIENCE);
}

void bucket_force(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	__atomic_fetch_sub(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	if (!__atomic_fetch_add(&bucket->in_flight, units(estimate), __ATOMIC_RELAXED))
		STORE(bucket->shared.time->progress, now);
	publish_flight(bucket);
	expect(bucket, estimate, is_known, now);
}

/*
 * Whether the container runs on another of its cards. It runs on all of them together, so that kernels that wait for
 * each other do not wait long.
 */
static bool runs_elsewhere(const struct bucket *bucket)
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
static uint64_t modesty(const struct bucket *bucket, uint64_t now)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return 0;
	return (bucket_is_behind(bucket) ? LATE_LOOK : 0) + (holder && !is_turn_over(bucket, now) ? GRACE : 0);
}

static bool has_level(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	int64_t level = LOAD(bucket->shared.time->level);
	int64_t wanted = LOAD(bucket->is_thirsty) ? (int64_t)thirst(bucket, now) : 1;

	if (level >= wanted) {
		if (wanted != 1)
			STORE(bucket->is_thirsty, 0);
		return true;
	}
	if (level > -(int64_t)ration(bucket, now) && runs_elsewhere(bucket))
		return true;
	STORE(bucket->is_thirsty, 1);
	wanted = (int64_t)thirst(bucket, now);
	*again = now + (uint64_t)(wanted - level) * WHOLE / rate(bucket, now) + modesty(bucket, now);
	return false;
}

static uint64_t run_ahead(const struct bucket *bucket, uint64_t now)
{
	return within(ration(bucket, now) / 2, NS_PER_MS / 2, 10 * NS_PER_MS);
}

/*
 * Whether more work may be under way: enough to keep the card busy, little enough to stop soon. Two kernels may always
 * be, but no more than two that were never measured.
 */
static bool has_room(const struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again)
{
	uint64_t in_flight = bucket_in_flight(bucket);
	uint64_t most_in_flight = is_known ? run_ahead(bucket, now) : 0;
	uint64_t finish = LOAD(bucket->finish);

	if (in_flight + estimate <= most_in_flight || in_flight <= estimate + VGPU_USAGE_TIME_UNIT)
		return true;
	uint64_t ends = finish > now ? (in_flight + estimate - most_in_flight) / 2 : (now - finish) / 4;
	*again = now + within(ends, 50 * NS_PER_US, NS_PER_MS);
	return false;
}

bool bucket_try(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again)
{
	follow_page(bucket, now);
	accrue(bucket, now);
	if (!has_level(bucket, now, again) || !has_room(bucket, estimate, is_known, now, again) ||
	    !has_turn(bucket, now, again)) {
		visit_unqueue();
		return false;
	}
	if (!may_visit(bucket, now, again))
		return false;
	bucket_force(bucket, estimate, is_known, now);
	return true;
}

bool bucket_is_mixed(const struct bucket *bucket)
{
	return has_neighbours(bucket) && LOAD(visit.is_mixed);
}

bool bucket_waits_for_others(const struct bucket *bucket)
{
	return has_neighbours(bucket) && LOAD(visit.queued);
}

bool bucket_is_leaving(const struct bucket *bucket, uint64_t now)
{
	return has_neighbours(bucket) && (LOAD(bucket->is_thirsty) || now >= LOAD(bucket->shared.visit->until));
}

uint64_t bucket_spare(struct bucket *bucket, uint64_t now, uint64_t *until)
{
	if (LOAD(bucket->shared.time->holder) != bucket->shared.slot + 1 || is_turn_over(bucket, now) ||
	    LOAD(bucket->shared.time->level) < (int64_t)(4 * SPARE) ||
	    bucket_in_flight(bucket) + SPARE > run_ahead(bucket, now) / 2 ||
	    (has_neighbours(bucket) && (!LOAD(visit.present) || now + 2 * SPARE > LOAD(bucket->shared.visit->until))))
		return 0;
	*until = now + SPARE;
	bucket_force(bucket, SPARE, true, now);
	return SPARE;
}

void bucket_spare_back(struct bucket *bucket, uint64_t left)
{
	bucket_release(bucket, left);
	STORE(bucket->finish, LOAD(bucket->finish) - left);
}

void bucket_measured(struct bucket *bucket, uint64_t ns)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t longest = LOAD(time->longest);

	STORE(time->longest, most(ns, longest - longest / 64));
	STORE(time->patience, most(4 * ns, LOAD(time->patience)));
}

static bool is_stuck(const struct vgpu_usage_time *time, const struct vgpu_usage_flight *flights, uint64_t patience,
		     uint64_t now)
{
	uint64_t progress = LOAD(time->progress), holder = LOAD(time->holder);

	if (!holder || holder > VGPU_USAGE_SLOTS || !LOAD(flights[holder - 1].in_flight))
		return false;
	return progress < now && now - progress > within(LOAD(time->patience), patience, 4 * NS_PER_S);
}

bool bucket_others_stuck(const struct bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_flight *flights;
	struct vgpu_usage_time *time;

	for (int i = 0; !bucket->is_local && (time = usage_time_at(i, &flights)); i++) {
		bool is_here = time == bucket->shared.time;
		if ((is_here && LOAD(time->holder) == bucket->shared.slot + 1) ||
		    !is_stuck(time, flights, is_here ? PATIENCE_HERE : PATIENCE, now))
			continue;
		STORE(time->progress, now);
		return true;
	}
	return false;
}

/* See compute/admission.h. Tenants can write the times of other processes, so all are taken within bounds. */
#include "compute/admission.h"

#include "compute/account.h"
#include "compute/batch.h"
#include "compute/change_cost.h"
#include "compute/container_slice.h"
#include "compute/process_slice.h"
#include "compute/slice_parameters.h"

#define PATIENCE (20 * NS_PER_MS)     /* with work on another card: the kernels of a group wait for each other */
#define PATIENCE_HERE NS_PER_S        /* with another process's work on this card: it may just be long */
#define AHEAD_ALONE (200 * NS_PER_MS) /* of a card for itself; with 100 ms a recorded training had 74 percent of 84 */
#define AHEAD_AFTER NS_PER_S          /* in which no other process of the container has had the card */
#define SHORT (50 * NS_PER_US)        /* a look that is so much later costs less than another one */
#define KEPT_LEAST (10 * NS_PER_US)   /* a shorter pause is not worth the look at who waits: a system call */
#define LOCAL_SLICE (64 * NS_PER_US)  /* a local slice: ns of use, and the time for which it is reserved */

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
	return (process_slice_is_behind(bucket) ? LATE_LOOK : 0) +
	       (holder && !process_slice_is_over(bucket, now) ? GRACE : 0);
}

bool admission_may_launch_far_ahead(const struct token_bucket *bucket, uint64_t now)
{
	return !container_slice_has_neighbours(bucket) &&
	       LOAD(bucket->shared.time->holder) == bucket->shared.slot + 1 &&
	       now - LOAD(bucket->taken_at) > AHEAD_AFTER && !schedule_idle_rate(bucket);
}

/* What counts are the tokens when the launch's work begins: far ahead that is behind all that is under way. */
static bool has_tokens(struct token_bucket *bucket, bool is_idle, uint64_t now, uint64_t *again)
{
	uint64_t begin = admission_may_launch_far_ahead(bucket, now) ? bounds_max(LOAD(bucket->finish), now) : now;
	int64_t until_begin = (int64_t)((begin - now) * schedule_rate(bucket, now) / WHOLE);
	int64_t tokens =
		LOAD(bucket->shared.time->level) + (is_idle ? (int64_t)token_bucket_in_flight(bucket) : until_begin);
	int64_t wanted = LOAD(bucket->is_throttled) ? (int64_t)schedule_refill_threshold(bucket, now) : 1;

	if (tokens >= wanted || (is_idle && schedule_idle_rate(bucket) >= WHOLE)) {
		if (wanted != 1)
			STORE(bucket->is_throttled, 0);
		return true;
	}
	if (tokens > -(int64_t)schedule_quota(bucket, now) && runs_elsewhere(bucket))
		return true;
	STORE(bucket->is_throttled, 1);
	wanted = (int64_t)schedule_refill_threshold(bucket, now);
	uint64_t rate = is_idle ? schedule_idle_rate(bucket) : schedule_rate(bucket, now);
	*again = begin + (uint64_t)(wanted - tokens) * WHOLE / rate + back_off(bucket, now);
	return false;
}

static uint64_t ahead_beside_others(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_waits_for_launches(bucket, now))
		return SLICE_AHEAD_CARDS;
	if (LOAD(container_slice.is_open))
		return SLICE_AHEAD_OPEN;
	if (LOAD(bucket->is_awaited) && LOAD(bucket->unsure) < SLICE_EARLY)
		return SLICE_AHEAD_AWAITED;
	bool is_sure = LOAD(bucket->unsure) < SLICE_UNSURE;
	return (is_sure ? SLICE_AHEAD : SLICE_AHEAD_UNSURE) + 2 * clock_lateness();
}

static uint64_t run_ahead(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_has_neighbours(bucket))
		return ahead_beside_others(bucket, now);
	if (admission_may_launch_far_ahead(bucket, now))
		return AHEAD_ALONE;
	return bounds_clamp(schedule_quota(bucket, now) / 2, NS_PER_MS / 2, 10 * NS_PER_MS);
}

/*
 * Whether more work may be under way beside others: enough to keep the card busy, and so little that it ends soon. A
 * long kernel follows another one when that is about to end. A kernel that was never measured runs alone, and then
 * twice as many follow each other each time: the first may have been a short one.
 */
static bool has_room_beside_others(const struct token_bucket *bucket, uint64_t estimate, bool is_trusted, uint64_t now,
				   uint64_t *again)
{
	uint64_t in_flight = token_bucket_in_flight(bucket), finish = LOAD(bucket->finish);
	uint64_t rest = finish > now ? finish - now : 0;
	uint64_t ahead = ahead_beside_others(bucket, now), left = SLICE_AHEAD_LONG + clock_lateness();
	uint64_t most = bounds_max(2 * ahead, estimate + VGPU_USAGE_TIME_UNIT);

	if (!in_flight)
		return true;
	if (is_trusted && in_flight <= most && (rest + estimate <= ahead || rest <= left + SHORT))
		return true;
	uint64_t longest = ahead == SLICE_AHEAD_AWAITED ? ahead : NS_PER_MS;
	*again = now + bounds_clamp(rest > left ? rest - left : rest, SHORT,
				    bounds_min(longest, account_look_each(bucket, in_flight)));
	return false;
}

/*
 * Whether more work may be under way: enough to keep the card busy, little enough to stop soon. Two kernels may always
 * be, but no more than two that were never measured.
 */
static bool has_room(const struct launch *launch, uint64_t now, uint64_t *again)
{
	const struct token_bucket *bucket = launch->bucket;
	const struct estimate *kind = launch->kind;
	uint64_t estimate = launch->estimate;
	uint64_t in_flight = token_bucket_in_flight(bucket), most_in_flight = run_ahead(bucket, now);
	uint64_t finish = LOAD(bucket->finish);
	bool is_known = estimates_known(kind);

	if (container_slice_has_neighbours(bucket))
		return has_room_beside_others(
			bucket, estimate, launch->is_held ? !launch->is_doubted : estimates_trusted(kind), now, again);
	if (in_flight <= estimate + VGPU_USAGE_TIME_UNIT || (is_known && in_flight + estimate <= most_in_flight))
		return true;
	uint64_t rest = is_known ? in_flight + estimate - most_in_flight : in_flight;
	*again = now + bounds_clamp(finish > now ? rest / 2 : (now - finish) / 4, SHORT, NS_PER_MS);
	return false;
}

/*
 * Time for which the container has kept the card from others without work counts as its use, though none is reported. Pauses of
 * less than three quarters of a change of contexts do not: whoever would use them loses more.
 */
static void charge_kept_card(struct token_bucket *bucket, uint64_t from, uint64_t now)
{
	from = bounds_max(from, LOAD(container_slice.began));
	if (LOAD(bucket->mean_pause) < change_cost_of_card(bucket) * 3 / 4 || from + KEPT_LEAST > now ||
	    !LOAD(container_slice.present) || LOAD(container_slice.is_mixed) || !container_slice_is_awaited())
		return;
	__atomic_fetch_sub(&bucket->shared.time->level, (int64_t)(now - from), __ATOMIC_RELAXED);
	__atomic_fetch_add(&bucket->kept, now - from, __ATOMIC_RELAXED);
}

void admission_note_pause(struct token_bucket *bucket, uint64_t now)
{
	uint64_t progress = LOAD(bucket->shared.time->progress), mean = LOAD(bucket->mean_pause);

	if (LOAD(bucket->in_flight) || progress > now)
		return;
	charge_kept_card(bucket, progress, now);
	uint64_t pause = now - progress;
	STORE(bucket->mean_pause, mean - mean / 4 + bounds_min(pause, SLICE_LONGEST_PAUSE(change_cost(bucket))) / 4);
	if (pause < SLICE_PAUSE)
		return;
	STORE(bucket->paused_at, now);
	STORE(bucket->used_at_pause, LOAD(bucket->shared.time->used));
}

/* Whether this process waits in the queue for time that nobody wants: without tokens, and behind all that have some. */
static bool waits_to_borrow(struct token_bucket *bucket, uint64_t now)
{
	if (schedule_idle_rate(bucket) <= schedule_rate(bucket, now) || !container_slice_has_neighbours(bucket) ||
	    LOAD(container_slice.present) || token_bucket_in_flight(bucket))
		return false;
	container_slice_queue_to_borrow(bucket, now);
	return true;
}

bool admission_try(const struct launch *launch, uint64_t now, uint64_t *again)
{
	struct token_bucket *bucket = launch->bucket;
	uint64_t estimate = launch->estimate;
	bool is_known = estimates_known(launch->kind);

	schedule_follow(bucket, now);
	bool is_idle = account_refill(bucket, now);
	bool may_begin = has_tokens(bucket, is_idle, now, again);
	if (!may_begin && !is_idle && waits_to_borrow(bucket, now)) {
		*again = bounds_min(*again, now + SLICE_LOOK_AGAIN);
		return false;
	}
	if (!may_begin || !has_room(launch, now, again) || !process_slice_has(bucket, now, again)) {
		container_slice_unqueue(bucket);
		return false;
	}
	if (!container_slice_may_run(bucket, now, again))
		return false;
	account_reserve(bucket, estimate, is_known, now);
	if (!container_slice_has_begun(bucket)) { /* the poller has left the card meanwhile */
		account_release(bucket, estimate);
		*again = now;
		return false;
	}
	if (container_slice_has_neighbours(bucket))
		container_slice_extend_lease(is_known, estimates_certain(launch->kind, now), now);
	return true;
}

uint64_t admission_take_local_slice(struct token_bucket *bucket, uint64_t now, uint64_t *until)
{
	if (LOAD(bucket->shared.time->holder) != bucket->shared.slot + 1 || process_slice_is_over(bucket, now) ||
	    (LOAD(bucket->shared.time->level) < (int64_t)(4 * LOCAL_SLICE) && !LOAD(bucket->borrows_from)) ||
	    token_bucket_in_flight(bucket) + LOCAL_SLICE > run_ahead(bucket, now) / 2 ||
	    (container_slice_has_neighbours(bucket) &&
	     (!LOAD(container_slice.present) || LOAD(container_slice.is_over))))
		return 0;
	*until = now + LOCAL_SLICE;
	account_reserve(bucket, LOCAL_SLICE, true, now);
	return LOCAL_SLICE;
}

static bool is_holder_stuck(const struct vgpu_usage_time *time, const struct vgpu_usage_flight *flights,
			    uint64_t patience, uint64_t now)
{
	uint64_t progress = LOAD(time->progress), holder = LOAD(time->holder);

	if (!holder || holder > VGPU_USAGE_SLOTS || !LOAD(flights[holder - 1].in_flight))
		return false;
	return progress < now && now - progress > bounds_clamp(LOAD(time->patience), patience, 4 * NS_PER_S);
}

bool admission_others_stuck(const struct token_bucket *bucket, uint64_t now)
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

bool admission_others_wait(const struct token_bucket *bucket)
{
	return process_slice_others_wait(bucket) || container_slice_is_awaited();
}

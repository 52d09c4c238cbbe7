/* See compute/token_bucket.h. Tenants can write the times of other processes, so all are taken within bounds. */
#include "compute/token_bucket.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "compute/container_slice.h"
#include "compute/neighbours.h"
#include "compute/presence.h"
#include "compute/process_slice.h"
#include "compute/schedule.h"
#include "compute/slice_parameters.h"
#include "shared/device_limits.h"
#include "shared/limits.h"

#define PATIENCE (20 * NS_PER_MS)     /* with work on another card: the kernels of a group wait for each other */
#define PATIENCE_HERE NS_PER_S        /* with another process's work on this card: it may just be long */
#define LOCAL_SLICE (64 * NS_PER_US)        /* a local slice: ns of use, and the time for which it is reserved */
#define REFILL_EACH (20 * NS_PER_US)
#define HOLDER_ABSENT (20 * NS_PER_MS) /* a process that has the time slice and wants the card looks more often */
#define MOST_DEBT (60 * (int64_t)NS_PER_S)

/* ---- the bucket of each device ---- */

enum { DEVICES = 64 };

static struct token_bucket *buckets[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Without a usage region each process is held to the share by itself. That is better than no limit. */
static void account_alone(struct token_bucket *bucket)
{
	struct vgpu_usage_time *time = calloc(1, sizeof(*time) + sizeof(struct vgpu_usage_flight));
	static struct vgpu_usage_slice slice;

	log_once(LOG_ERROR, "the usage region cannot be used; each process is held to the core share by itself");
	bucket->is_local = 1;
	bucket->shared = (struct usage_time){time, &slice, time ? (struct vgpu_usage_flight *)(time + 1) : NULL, 0};
}

static struct token_bucket *make_bucket(CUdevice device, const struct device_limits *card)
{
	struct token_bucket *bucket = calloc(1, sizeof(*bucket));

	if (!bucket)
		return NULL;
	bucket->device = device;
	memcpy(bucket->uuid, card->uuid, sizeof(bucket->uuid));
	bucket->limits_seen = UINT64_MAX;
	bucket->mean_pause = SLICE_LONGEST_PAUSE; /* until it is known */
	(void)presence_is_available(); /* looks for the file before the first launch waits */
	if (!usage_time(card->uuid, &bucket->shared))
		account_alone(bucket);
	if (bucket->shared.time) {
		container_slice_join(bucket);
		return bucket;
	}
	free(bucket);
	return NULL;
}

static struct token_bucket *find_bucket(CUdevice device)
{
	return __atomic_load_n(&buckets[device], __ATOMIC_ACQUIRE);
}

struct token_bucket *token_bucket_of_device(CUdevice device)
{
	struct device_limits card;

	if (device < 0 || device >= DEVICES || limits_state() != LIMITS_PRESENT)
		return NULL;
	if (find_bucket(device) || !device_limits_of(device, &card))
		return find_bucket(device);
	pthread_mutex_lock(&lock);
	if (!find_bucket(device))
		__atomic_store_n(&buckets[device], make_bucket(device, &card), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return find_bucket(device);
}

void token_bucket_reset_all(void)
{
	pthread_mutex_init(&lock, NULL);
	container_slice_reset();
	memset(buckets, 0, sizeof(buckets)); /* the child has copies of the parent's: a few hundred bytes are lost */
}

uint64_t token_bucket_tidy_all(uint64_t now)
{
	struct token_bucket *list[DEVICES];
	unsigned int count = 0;

	for (int i = 0; i < DEVICES; i++)
		if ((list[count] = find_bucket(i)))
			count++;
	return container_slice_tidy(list, count, now);
}

/* ---- the account: the tokens that time adds, and the tokens that work uses ---- */

/*
 * Returns the capacity: one quota, for a burst. While the container waits for others, what they take is owed to it
 * beyond that, for each wait by itself. It loses nothing while it works that off.
 */
static uint64_t capacity(const struct token_bucket *bucket, uint64_t elapsed, uint64_t now)
{
	uint64_t quota = bounds_max(schedule_quota(bucket, now), 2 * NS_PER_MS);
	uint64_t waits_from = LOAD(neighbours.waits_from);

	if (!container_slice_has_neighbours(bucket) || elapsed > SLICE_ABSENT)
		return quota;
	if (waits_from && waits_from < now)
		return quota + LOAD(neighbours.owed_before) +
		       bounds_min(now - waits_from, SLICE_MOST_OWED) * schedule_own_rate(bucket) / WHOLE;
	bool is_at_work = LOAD(bucket->in_flight) || LOAD(container_slice.present);
	bool works_off = LOAD(bucket->shared.time->level) > (int64_t)quota && is_at_work;
	return works_off ? bounds_max(quota, SLICE_MOST_OWED) : quota;
}

/* Adds tokens, up to `most_allowed`. A nonsensical number of tokens becomes 0. */
static void add_tokens(struct token_bucket *bucket, uint64_t gain, int64_t most_allowed)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t tokens = LOAD(*word);
	int64_t now;

	do {
		if (tokens < -MOST_DEBT || tokens > most_allowed + MOST_DEBT) /* a process wrote garbage */
			now = 0;
		else if (tokens >= most_allowed)
			return;
		else
			now = tokens + (int64_t)gain < most_allowed ? tokens + (int64_t)gain : most_allowed;
	} while (!__atomic_compare_exchange_n(word, &tokens, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* Returns up to how many tokens borrowed time adds any. What is under way counts among them. */
static int64_t most_borrowed(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t most = schedule_idle_rate(bucket) < WHOLE ? 2 * schedule_refill_threshold(bucket, now) : SLICE_BORROWED;

	return (int64_t)most - (int64_t)token_bucket_in_flight(bucket);
}

/*
 * Whether a soft share goes on beyond its tokens, because nobody else wants the card. It is looked at before tokens are
 * added: who waits now has waited since this container last ran out of them.
 */
static bool borrows(struct token_bucket *bucket, uint64_t now)
{
	uint64_t rate = schedule_idle_rate(bucket);

	if (rate <= schedule_rate(bucket, now) || LOAD(bucket->shared.time->level) > (int64_t)(2 * NS_PER_MS)) {
		STORE(bucket->borrows_from, 0);
		return false;
	}
	if (LOAD(bucket->schedule.tenants) == 1)
		return true;
	return container_slice_has_neighbours(bucket) && container_slice_borrows(bucket, now);
}

/*
 * Whether another process of the container adds the tokens of this time. The one that has the time slice knows that the
 * container waits for others, or works off what it was owed for that; this one would take away what exceeds a quota.
 */
static bool leaves_to_holder(const struct token_bucket *bucket, uint64_t gain, uint64_t most, uint64_t elapsed)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	return holder && holder != bucket->shared.slot + 1 && elapsed < HOLDER_ABSENT &&
	       container_slice_has_neighbours(bucket) && LOAD(bucket->shared.time->level) + (int64_t)gain > (int64_t)most;
}

/* Adds the container's share of the time that has passed. Of several threads, the one that moves the stamp adds it. */
static void refill(struct token_bucket *bucket, bool is_idle, uint64_t now)
{
	uint64_t *word = &bucket->shared.time->stamp;
	uint64_t stamp = LOAD(*word);

	if (now - stamp < REFILL_EACH || (stamp > now && stamp - now < NS_PER_S))
		return;
	uint64_t elapsed =
		stamp && stamp < now ? bounds_min(now - stamp, (uint64_t)MOST_DEBT * 100) : schedule_period(bucket);
	uint64_t rate = schedule_rate(bucket, now), idle_rate = schedule_idle_rate(bucket);
	uint64_t gain = elapsed * rate / WHOLE, most = capacity(bucket, elapsed, now);
	if (leaves_to_holder(bucket, gain, most, elapsed) || !atomics_swap(word, stamp, now))
		return;
	add_tokens(bucket, gain, (int64_t)most);
	if (is_idle && idle_rate > rate)
		add_tokens(bucket, elapsed * (idle_rate - rate) / WHOLE, most_borrowed(bucket, now));
}

static void end_in_flight(struct token_bucket *bucket, uint64_t reserved)
{
	uint32_t *word = &bucket->in_flight;
	uint32_t in_flight = LOAD(*word);
	uint32_t less = token_bucket_units(reserved);

	while (!__atomic_compare_exchange_n(word, &in_flight, in_flight > less ? in_flight - less : 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
	token_bucket_publish_flight(bucket);
}

void token_bucket_release(struct token_bucket *bucket, uint64_t estimate)
{
	__atomic_fetch_add(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	end_in_flight(bucket, estimate);
}

void token_bucket_book(struct token_bucket *bucket, uint64_t more, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_sub(&time->level, (int64_t)more, __ATOMIC_RELAXED);
	process_slice_extend(bucket, now);
}

static void note_early_end(struct token_bucket *bucket, uint64_t estimate, uint64_t used)
{
	uint32_t mean = LOAD(bucket->unsure);
	uint64_t early = used < estimate ? (estimate - used) * 256 / estimate : 0;

	STORE(bucket->unsure, (mean * 15 + (uint32_t)early) / 16);
}

void token_bucket_complete(struct token_bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_add(&time->level, (int64_t)booked - (int64_t)used, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);
	end_in_flight(bucket, reserved);
	note_early_end(bucket, reserved, used);
	STORE(time->progress, now);
	uint64_t finish = now + token_bucket_in_flight(bucket);
	STORE(bucket->finish, finish);
	if (LOAD(time->holder) == bucket->shared.slot + 1) {
		STORE(time->drains_at, finish);
		if (finish == now && process_slice_is_over(bucket, now))
			process_slice_hand_over(bucket);
	}
}

uint64_t token_bucket_uncounted(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	from = bounds_max(from, LOAD(bucket->counted_until));
	if (to <= from)
		return 0;
	STORE(bucket->counted_until, to);
	return to - from;
}

void token_bucket_count_back(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	(void)atomics_swap(&bucket->counted_until, from, to);
}

/* ---- whether work may begin ---- */

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
	return (process_slice_is_behind(bucket) ? LATE_LOOK : 0) +
	       (holder && !process_slice_is_over(bucket, now) ? GRACE : 0);
}

static bool has_tokens(struct token_bucket *bucket, bool is_idle, uint64_t now, uint64_t *again)
{
	int64_t tokens = LOAD(bucket->shared.time->level) + (int64_t)(is_idle ? token_bucket_in_flight(bucket) : 0);
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
	*again = now + (uint64_t)(wanted - tokens) * WHOLE / rate + back_off(bucket, now);
	return false;
}

static uint64_t ahead_beside_others(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_waits_for_launches(bucket, now))
		return SLICE_AHEAD_CARDS;
	return LOAD(bucket->unsure) < SLICE_UNSURE ? SLICE_AHEAD : SLICE_AHEAD_UNSURE;
}

static uint64_t run_ahead(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_has_neighbours(bucket))
		return ahead_beside_others(bucket, now);
	return bounds_clamp(schedule_quota(bucket, now) / 2, NS_PER_MS / 2, 10 * NS_PER_MS);
}

/*
 * Whether more work may be under way beside others: enough to keep the card busy, and so little that it ends soon. A
 * long kernel follows another one when that is about to end. A kernel that was never measured runs alone.
 */
static bool has_room_beside_others(const struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now,
				   uint64_t *again)
{
	uint64_t in_flight = token_bucket_in_flight(bucket), finish = LOAD(bucket->finish);
	uint64_t rest = finish > now ? finish - now : 0;
	uint64_t ahead = ahead_beside_others(bucket, now);
	uint64_t most = bounds_max(2 * ahead, estimate + VGPU_USAGE_TIME_UNIT);

	if (!in_flight)
		return true;
	if (is_known && in_flight <= most && (rest + estimate <= ahead || rest <= SLICE_AHEAD_LONG))
		return true;
	*again = now + bounds_clamp(rest > SLICE_AHEAD_LONG ? rest - SLICE_AHEAD_LONG : rest, 50 * NS_PER_US,
				    ahead > SLICE_AHEAD ? SLICE_LOOK_UNSURE : NS_PER_MS);
	return false;
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

	if (container_slice_has_neighbours(bucket))
		return has_room_beside_others(bucket, estimate, is_known, now, again);
	if (in_flight + estimate <= most_in_flight || in_flight <= estimate + VGPU_USAGE_TIME_UNIT)
		return true;
	uint64_t ends = finish > now ? (in_flight + estimate - most_in_flight) / 2 : (now - finish) / 4;
	*again = now + bounds_clamp(ends, 50 * NS_PER_US, NS_PER_MS);
	return false;
}

void token_bucket_note_pause(struct token_bucket *bucket, uint64_t now)
{
	uint64_t progress = LOAD(bucket->shared.time->progress), mean = LOAD(bucket->mean_pause);

	if (LOAD(bucket->in_flight) || progress > now)
		return;
	uint64_t pause = now - progress;
	STORE(bucket->mean_pause, mean - mean / 4 + bounds_min(pause, SLICE_LONGEST_PAUSE) / 4);
	if (pause >= SLICE_PAUSE)
		STORE(bucket->paused_at, now);
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

bool token_bucket_try(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now, uint64_t *again)
{
	schedule_follow(bucket, now);
	bool is_idle = borrows(bucket, now);
	refill(bucket, is_idle, now);
	bool may_begin = has_tokens(bucket, is_idle, now, again);
	if (!may_begin && !is_idle && waits_to_borrow(bucket, now)) {
		*again = bounds_min(*again, now + SLICE_LOOK_AGAIN);
		return false;
	}
	if (!may_begin || !has_room(bucket, estimate, is_known, now, again) ||
	    !process_slice_has(bucket, now, again)) {
		container_slice_unqueue(bucket);
		return false;
	}
	if (!container_slice_may_run(bucket, now, again))
		return false;
	token_bucket_force(bucket, estimate, is_known, now);
	if (!container_slice_has_begun(bucket)) { /* the poller has left the card meanwhile */
		token_bucket_return_local_slice(bucket, estimate);
		*again = now;
		return false;
	}
	if (container_slice_has_neighbours(bucket))
		container_slice_extend_lease(is_known, now);
	return true;
}

bool token_bucket_leaves_in_pauses(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && !container_slice_sits_through_pauses(bucket);
}

bool token_bucket_is_mixed(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.is_mixed);
}

void token_bucket_note_lapse(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_has_neighbours(bucket))
		container_slice_note_lapse(now);
}

bool token_bucket_waits_for_others(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.queued);
}

bool token_bucket_is_leaving(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) &&
	       (LOAD(bucket->is_throttled) || LOAD(container_slice.is_over));
}

uint64_t token_bucket_take_local_slice(struct token_bucket *bucket, uint64_t now, uint64_t *until)
{
	if (LOAD(bucket->shared.time->holder) != bucket->shared.slot + 1 || process_slice_is_over(bucket, now) ||
	    (LOAD(bucket->shared.time->level) < (int64_t)(4 * LOCAL_SLICE) && !LOAD(bucket->borrows_from)) ||
	    token_bucket_in_flight(bucket) + LOCAL_SLICE > run_ahead(bucket, now) / 2 ||
	    (container_slice_has_neighbours(bucket) &&
	     (!LOAD(container_slice.present) || LOAD(container_slice.is_over))))
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

static bool is_holder_stuck(const struct vgpu_usage_time *time, const struct vgpu_usage_flight *flights,
			    uint64_t patience, uint64_t now)
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

/* See compute/container_slice.h. Tenants can write the times of the usage region, so all are taken within bounds. */
#include "compute/container_slice.h"

#include <stdatomic.h>

#include "base/log.h"
#include "compute/presence.h"
#include "compute/process_slice.h"

#define LOOK_AGAIN (4 * NS_PER_MS)     /* a container that leaves wakes those that wait, but a killed one does not */
#define STAY (NS_PER_MS)               /* without work: the program may be about to launch more */
#define COLLISION (20 * NS_PER_US)
#define EXTRA_PATIENCE (100 * NS_PER_MS)
#define LATE (20 * NS_PER_MS)          /* how long the next container in the queue may take to begin */
#define LONGEST_WAIT (5 * NS_PER_S)    /* for others, whatever they lock: then this process distrusts them */
#define DISTRUST (60 * NS_PER_S)       /* how long this process then waits for no other container */
#define FORGOTTEN (20 * NS_PER_MS)     /* a lock not seen for this long may have been dropped meanwhile */

#define BUSY (20 * NS_PER_US)          /* until the next try, while another thread holds `lock` */

#define NOWHERE UINT64_MAX

struct in_way {
	uint64_t where, since, seen;
};

struct container_slice container_slice;

/* Guards this process's locks and what it has seen of others: one thread at a time. */
static atomic_flag lock = ATOMIC_FLAG_INIT;

static bool try_lock_slice(void)
{
	return !atomic_flag_test_and_set_explicit(&lock, memory_order_acquire);
}

static void unlock_slice(void)
{
	atomic_flag_clear_explicit(&lock, memory_order_release);
}

static uint64_t host_time(uint64_t now)
{
	return now + (uint64_t)schedule_file_clock_offset();
}

/* How long another container may stay: two periods and a long kernel. */
static uint64_t patience(const struct token_bucket *bucket)
{
	return 2 * schedule_period(bucket) + EXTRA_PATIENCE;
}

static void leave_queue(void)
{
	uint64_t queued = __atomic_exchange_n(&container_slice.queued, 0, __ATOMIC_RELAXED);

	if (queued)
		presence_unqueue(queued);
}

static void stop_waiting(void)
{
	STORE(container_slice.waits_from, 0);
	if (LOAD(container_slice.queued))
		leave_queue();
}

void container_slice_unqueue(void)
{
	if (!LOAD(container_slice.waits_from) && !LOAD(container_slice.queued))
		return;
	while (!try_lock_slice())
		clock_sleep_until(clock_now() + BUSY / 4);
	stop_waiting();
	unlock_slice();
}

static void join_queue(uint64_t since)
{
	if (LOAD(container_slice.queued) == since)
		return;
	leave_queue();
	STORE(container_slice.queued, since);
	presence_queue(since);
}

/* Returns since when the container waits, in any of its processes. */
static uint64_t waiting_since(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t *word = &bucket->shared.slice->waiting_since;
	uint64_t since = LOAD(*word), host = host_time(now);

	if (!since || since > host || host - since > 20 * patience(bucket)) {
		since = host;
		STORE(*word, since);
	}
	return since;
}

static bool goes_on(const struct token_bucket *bucket, uint64_t now)
{
	return now < LOAD(bucket->shared.slice->until);
}

/* The slice is as long as the tokens allow. While others wait, a loan makes the container's slices no longer. */
static void begin_slice(struct token_bucket *bucket, uint64_t now)
{
	int64_t tokens = LOAD(bucket->shared.time->level);
	uint64_t owed = bounds_clamp(tokens > 0 ? (uint64_t)tokens : 0, schedule_refill_threshold(bucket, now),
				     schedule_own_rate(bucket) * schedule_period(bucket) / WHOLE);

	STORE(bucket->shared.slice->until, now + owed);
	STORE(bucket->has_new_slice, 1);
}

/* An ignored container that has dropped its lock counts again. One that still holds its lock stays ignored. */
static void leave_card(void)
{
	(void)presence_ignores();
	presence_drop();
	presence_wake();
}

static void note_seen(struct in_way *way, uint64_t where, uint64_t now)
{
	if (where != way->where || now - way->seen > FORGOTTEN)
		*way = (struct in_way){.where = where, .since = now};
	way->seen = now;
}

/* Whether this process waits for the lock's owner. After `longest` it ignores the lock instead. */
static bool is_in_way(const struct in_way *way, uint64_t longest, uint64_t now)
{
	if (now - way->since < longest)
		return true;
	presence_ignore(way->where);
	return false;
}

static struct in_way *find_place(struct in_way *places, uint64_t where)
{
	struct in_way *oldest = places;

	for (int i = 0; i < PRESENCE_LISTED; i++) {
		if (places[i].where == where)
			return &places[i];
		if (places[i].seen < oldest->seen)
			oldest = &places[i];
	}
	return oldest;
}

/* The wait for each lock is timed by itself, so that containers that come and go do not excuse one that stays. */
static bool others_are_in_way(const struct token_bucket *bucket, uint64_t now)
{
	static struct in_way places[PRESENCE_LISTED];
	uint64_t where[PRESENCE_LISTED];
	unsigned int count = presence_list_others(where);
	bool is_waited_for = count == PRESENCE_LISTED; /* the list is full: there may be more */

	for (unsigned int i = 0; i < count; i++) {
		struct in_way *place = find_place(places, where[i]);
		note_seen(place, where[i], now);
		is_waited_for |= is_in_way(place, patience(bucket), now);
	}
	for (int i = 0; i < PRESENCE_LISTED; i++) /* the wait for a container that left and returns starts anew */
		if (places[i].seen != now)
			places[i].where = NOWHERE;
	return is_waited_for;
}

/* A container that stopped within its slice is ignored until it leaves, and so is the next one that does not begin. */
static bool others_come_first(const struct token_bucket *bucket, uint64_t since, uint64_t now)
{
	static struct in_way waiting = {.where = NOWHERE};
	uint64_t where;

	if (others_are_in_way(bucket, now)) {
		waiting.where = NOWHERE;
		return true;
	}
	if (goes_on(bucket, now))
		return false;
	while (presence_waiting_before(since, &where)) {
		note_seen(&waiting, where, now);
		if (is_in_way(&waiting, LATE, now))
			return true;
	}
	waiting.where = NOWHERE;
	return false;
}

/* However many locks other containers hold, they do not hold this one up for ever. */
static bool must_wait(const struct token_bucket *bucket, uint64_t since, uint64_t now)
{
	if (now < LOAD(container_slice.distrusts_until))
		return false;
	if (!others_come_first(bucket, since, now)) {
		STORE(container_slice.waits_from, 0);
		return false;
	}
	if (!LOAD(container_slice.waits_from))
		STORE(container_slice.waits_from, now);
	if (now - LOAD(container_slice.waits_from) < LONGEST_WAIT)
		return true;
	log_once(LOG_WARNING, "another container has held the card for 5 s; ignoring it for 60 s");
	STORE(container_slice.waits_from, 0);
	STORE(container_slice.distrusts_until, now + DISTRUST);
	return false;
}

static bool try_begin(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t since = waiting_since(bucket, now), where;

	*again = now + LOOK_AGAIN;
	if (must_wait(bucket, since, now)) {
		join_queue(since);
		return false;
	}
	presence_hold();
	bool others = presence_of_others(&where);
	if (others && now >= LOAD(container_slice.distrusts_until)) { /* both began at the same moment */
		presence_drop();
		*again = now + COLLISION + bucket->shared.slot % 8 * COLLISION;
		return false;
	}
	stop_waiting();
	STORE(bucket->shared.slice->waiting_since, 0);
	STORE(container_slice.is_mixed, others || presence_ignores());
	STORE(container_slice.is_over, 0);
	STORE(container_slice.present, 1);
	if (!goes_on(bucket, now))
		begin_slice(bucket, now);
	return true;
}

static bool is_awaited_locked(void)
{
	uint64_t where;

	return LOAD(container_slice.present) && presence_waiting_before(UINT64_MAX, &where);
}

bool container_slice_is_awaited(void)
{
	if (!LOAD(container_slice.present) || !try_lock_slice())
		return false;
	bool awaited = is_awaited_locked();
	unlock_slice();
	return awaited;
}

static bool request(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!presence_is_kept()) {
		STORE(container_slice.present, 0);
		STORE(container_slice.queued, 0);
	}
	if (!LOAD(container_slice.present))
		return try_begin(bucket, now, again);
	if (!is_awaited_locked()) {
		begin_slice(bucket, now);
		return true;
	}
	if (token_bucket_in_flight(bucket)) {
		STORE(container_slice.is_over, 1);
		*again = bounds_max(LOAD(bucket->finish), now + 100 * NS_PER_US);
		return false;
	}
	STORE(container_slice.present, 0);
	STORE(bucket->shared.slice->until, 0);
	leave_card();
	return try_begin(bucket, now, again);
}

/* Requests a time slice, or more of the present one. */
static bool request_slice(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	*again = now + BUSY;
	if (!try_lock_slice())
		return false;
	bool may = request(bucket, now, again);
	unlock_slice();
	return may;
}

/* Returns until when the container stays without work. */
static uint64_t stays_until(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t until = LOAD(bucket->shared.slice->until);

	if (LOAD(container_slice.is_over))
		return 0;
	if (LOAD(bucket->is_throttled) &&
	    LOAD(bucket->shared.time->level) < (int64_t)container_slice_refill_threshold(bucket, now))
		return 0;
	return bounds_min(until, LOAD(bucket->shared.time->progress) + STAY);
}

static void end_slice(struct token_bucket *const *buckets, unsigned int count, uint64_t now)
{
	STORE(container_slice.present, 0);
	for (unsigned int i = 0; i < count; i++)
		if (token_bucket_in_flight(buckets[i])) { /* another thread has launched meanwhile */
			STORE(container_slice.present, 1);
			return;
		}
	for (unsigned int i = 0; i < count; i++)
		if (LOAD(buckets[i]->shared.time->holder) == buckets[i]->shared.slot + 1 || !goes_on(buckets[i], now))
			STORE(buckets[i]->shared.slice->until, 0);
	leave_card();
}

/*
 * Checks ignored locks between the beginning and the end of a slice, too: two containers that ignore each other hardly
 * ever begin or leave while the other is away.
 */
static void look_at_ignored(void)
{
	if (!LOAD(container_slice.is_mixed) || !try_lock_slice())
		return;
	(void)presence_ignores();
	unlock_slice();
}

uint64_t container_slice_tidy(struct token_bucket *const *buckets, unsigned int count, uint64_t now)
{
	uint64_t until = 0;

	look_at_ignored();
	if (!LOAD(container_slice.present))
		return UINT64_MAX;
	for (unsigned int i = 0; i < count; i++) {
		if (token_bucket_in_flight(buckets[i]))
			return UINT64_MAX;
		until = bounds_max(until, stays_until(buckets[i], now));
	}
	if (now < until)
		return until;
	if (!try_lock_slice())
		return now + BUSY;
	if (LOAD(container_slice.present)) /* another thread may have left meanwhile */
		end_slice(buckets, count, now);
	unlock_slice();
	return UINT64_MAX;
}

void container_slice_reset(void)
{
	container_slice = (struct container_slice){0};
	unlock_slice(); /* another thread of the parent may have held it */
	presence_reset();
}

bool container_slice_has_neighbours(const struct token_bucket *bucket)
{
	return LOAD(bucket->schedule.tenants) > 1 && presence_is_available();
}

uint64_t container_slice_refill_threshold(const struct token_bucket *bucket, uint64_t now)
{
	return container_slice_has_neighbours(bucket) ? schedule_quota(bucket, now) / 2
						      : schedule_refill_threshold(bucket, now);
}

bool container_slice_may_run(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!container_slice_has_neighbours(bucket))
		return true;
	if (LOAD(container_slice.present) && bounds_max(LOAD(bucket->finish), now) < LOAD(bucket->shared.slice->until))
		return true;
	return request_slice(bucket, now, again);
}

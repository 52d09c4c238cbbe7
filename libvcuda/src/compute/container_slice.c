/* See compute/container_slice.h. Tenants can write the times of the usage region, so all are taken within bounds. */
#include "compute/container_slice.h"

#include <stdatomic.h>

#include "base/log.h"
#include "compute/presence.h"
#include "compute/process_slice.h"
#include "compute/slice_parameters.h"

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

/* The buckets of the cards that this process uses. */
static struct token_bucket *joined[CONTAINER_SLICE_CARDS];
static unsigned int joined_count;

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

static void stop_waiting(const struct token_bucket *bucket)
{
	STORE(container_slice.waits_from, 0);
	if (!LOAD(container_slice.queued))
		return;
	leave_queue();
	STORE(bucket->shared.slice->waiting_since, 0);
}

void container_slice_unqueue(const struct token_bucket *bucket)
{
	if (!LOAD(container_slice.waits_from) && !LOAD(container_slice.queued))
		return;
	while (!try_lock_slice())
		clock_sleep_until(clock_now() + BUSY / 4);
	stop_waiting(bucket);
	unlock_slice();
}

/*
 * Now and then the process moves to the next place, which is the same to a fraction of a millisecond: containers that
 * have ignored its place, because it did not come, see that it is there.
 */
static void join_queue(struct token_bucket *bucket, uint64_t place, uint64_t now)
{
	if (LOAD(container_slice.queued) == place) {
		if (now - container_slice.moved_at < SLICE_MOVE)
			return;
		place += PRESENCE_PLACE;
	}
	leave_queue();
	container_slice.moved_at = now;
	STORE(container_slice.queued, place);
	STORE(bucket->shared.slice->waiting_since, place);
	presence_queue(place);
}

/* Returns for how long the container's tokens have been owed to it, within bounds. Less than 0: it is in debt. */
static int64_t owed_for(const struct token_bucket *bucket)
{
	int64_t most = (int64_t)(100 * NS_PER_S), tokens = LOAD(bucket->shared.time->level);
	int64_t period = (int64_t)schedule_period(bucket);

	tokens = tokens > most ? most : tokens < -most ? -most : tokens;
	int64_t owed = tokens * (int64_t)WHOLE / (int64_t)schedule_own_rate(bucket);
	return owed > period ? period : owed;
}

/*
 * Whether the program answers requests: it has paused within the last period, and has not used up its tokens. It comes
 * before programs that never pause, which lose nothing by it: the tokens bound what it uses.
 */
static bool answers_requests(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t quota = schedule_own_rate(bucket) * schedule_period(bucket) / WHOLE;

	return LOAD(bucket->paused_at) && now - LOAD(bucket->paused_at) < schedule_period(bucket) &&
	       LOAD(bucket->shared.time->level) >= (int64_t)(quota / 2);
}

/*
 * Returns the container's place in the order in which containers run, on the host's clock: since when its tokens are
 * owed to it. A container on several cards has one place, the latest.
 */
static uint64_t place_now(const struct token_bucket *bucket, uint64_t now)
{
	int64_t owed = owed_for(bucket);

	for (unsigned int i = 0; i < joined_count; i++)
		if (owed_for(joined[i]) < owed)
			owed = owed_for(joined[i]);
	return host_time(now) - (uint64_t)owed - (answers_requests(bucket, now) ? schedule_period(bucket) : 0);
}

/* Returns the place at which this process waits. It stays the same until the process has begun or stopped waiting. */
static uint64_t waiting_place(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t place = LOAD(container_slice.queued), host = host_time(now);

	if (place && place < host + 20 * patience(bucket) && host < place + 20 * patience(bucket))
		return place;
	place = place_now(bucket, now);
	return place;
}

static bool goes_on(const struct token_bucket *bucket, uint64_t now)
{
	return now < LOAD(bucket->shared.slice->until);
}

/* Until the slice is over, other processes of the container need not queue to take part in it. */
static void begin_slice(struct token_bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.slice->until, now + schedule_period(bucket));
	STORE(bucket->has_new_slice, 1);
}

/* An ignored container that has dropped its lock counts again. One that still holds its lock stays ignored. */
static void leave_card(void)
{
	(void)presence_ignores();
	presence_drop();
	presence_wake_next();
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

/* Whether another container is earlier in the queue. One that others pass over all the time is ignored. */
static bool waits_first(const struct token_bucket *bucket, uint64_t since, uint64_t now)
{
	static struct in_way first = {.where = NOWHERE};
	uint64_t where;

	if (!presence_earliest_before(since, &where))
		return false;
	note_seen(&first, where, now);
	return is_in_way(&first, patience(bucket), now);
}

/* A container that stopped within its slice is ignored until it leaves, and so is the next one that does not begin. */
static bool others_come_first(const struct token_bucket *bucket, uint64_t since, uint64_t now, bool *is_next)
{
	static struct in_way waiting = {.where = NOWHERE};
	uint64_t where;

	*is_next = false;
	if (others_are_in_way(bucket, now)) {
		waiting.where = NOWHERE;
		*is_next = !waits_first(bucket, since, now);
		return true;
	}
	if (goes_on(bucket, now))
		return false;
	while (presence_earliest_before(since, &where)) {
		note_seen(&waiting, where, now);
		if (is_in_way(&waiting, LATE, now))
			return true;
	}
	waiting.where = NOWHERE;
	return false;
}

/* Takes away the tokens beyond one quota. */
static void forgo(struct token_bucket *bucket, uint64_t now)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t tokens = LOAD(*word), quota = (int64_t)schedule_quota(bucket, now);

	while (tokens > quota && !__atomic_compare_exchange_n(word, &tokens, quota, false, __ATOMIC_ACQ_REL,
							      __ATOMIC_RELAXED))
		;
}

/* However many locks other containers hold, they do not hold this one up for ever. */
static bool must_wait(struct token_bucket *bucket, uint64_t since, uint64_t now, bool *is_next)
{
	if (now < LOAD(container_slice.distrusts_until))
		return false;
	if (!others_come_first(bucket, since, now, is_next)) {
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
	forgo(bucket, now); /* nobody may have used the card meanwhile */
	return false;
}

/*
 * Two containers began at the same moment if another one appears between the look and the lock. The one with the lower
 * number goes on. The other one gives way, and wakes those that saw its lock.
 */
static bool gives_way(uint64_t now)
{
	uint64_t where;

	if (now < LOAD(container_slice.distrusts_until) || !presence_of_others(&where))
		return false;
	if (presence_is_before_others()) {
		clock_sleep_until(now + COLLISION / 2);
		if (!presence_of_others(&where))
			return false;
	}
	presence_drop();
	presence_wake_next();
	return true;
}

static bool try_begin(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t place = waiting_place(bucket, now), where;
	bool is_next = false;

	if (must_wait(bucket, place, now, &is_next)) {
		join_queue(bucket, place, now);
		*again = now + (is_next ? SLICE_LOOK_AS_NEXT : SLICE_LOOK_AGAIN);
		return false;
	}
	presence_hold();
	if (gives_way(now)) {
		join_queue(bucket, place, now);
		*again = now + COLLISION;
		return false;
	}
	bool others = presence_of_others(&where);
	stop_waiting(bucket);
	STORE(bucket->shared.slice->waiting_since, 0);
	STORE(container_slice.is_mixed, others || presence_ignores());
	if (LOAD(container_slice.is_mixed))
		forgo(bucket, now); /* whom it waited for and now ignores may have used nothing */
	STORE(container_slice.is_over, 0);
	STORE(container_slice.next_look, now + SLICE_LOOK);
	STORE(container_slice.present, 1);
	begin_slice(bucket, now);
	return true;
}

bool container_slice_is_awaited(void)
{
	uint64_t where;

	if (!LOAD(container_slice.present) || !try_lock_slice())
		return false;
	bool awaited = LOAD(container_slice.present) && presence_waiting_before(UINT64_MAX, &where);
	unlock_slice();
	return awaited;
}

/*
 * Whether a container waits that is to run before this one, by a margin that keeps changes rare: two containers that
 * always have work each run for a quota in each period.
 */
static bool is_behind_others(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t where;

	return presence_waiting_before(place_now(bucket, now) - schedule_period(bucket) / 2, &where);
}

static bool request(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!presence_is_kept()) {
		STORE(container_slice.present, 0);
		STORE(container_slice.queued, 0);
	}
	if (!LOAD(container_slice.present))
		return try_begin(bucket, now, again);
	uint64_t where;
	STORE(container_slice.is_mixed, presence_of_others(&where) || presence_ignores());
	bool is_over = is_behind_others(bucket, now);
	STORE(container_slice.is_over, is_over);
	STORE(container_slice.next_look, is_over ? 0 : now + SLICE_LOOK);
	if (!is_over) {
		STORE(bucket->shared.slice->until, now + schedule_period(bucket));
		return true;
	}
	if (token_bucket_in_flight(bucket)) {
		*again = bounds_max(LOAD(bucket->finish), now + 50 * NS_PER_US);
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

bool container_slice_sits_through_pauses(const struct token_bucket *bucket)
{
	return LOAD(bucket->mean_pause) < SLICE_CHANGE;
}

/* Returns until when the container stays without work. */
static uint64_t stays_until(const struct token_bucket *bucket, uint64_t now)
{
	if (LOAD(container_slice.is_over) || !container_slice_sits_through_pauses(bucket))
		return 0;
	if (LOAD(bucket->is_throttled) &&
	    LOAD(bucket->shared.time->level) < (int64_t)schedule_refill_threshold(bucket, now))
		return 0;
	return LOAD(bucket->shared.time->progress) + SLICE_STAY;
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

void container_slice_join(struct token_bucket *bucket)
{
	if (joined_count == CONTAINER_SLICE_CARDS)
		return;
	joined[joined_count] = bucket;
	__atomic_store_n(&joined_count, joined_count + 1, __ATOMIC_RELEASE);
}

void container_slice_reset(void)
{
	joined_count = 0;
	container_slice = (struct container_slice){0};
	unlock_slice(); /* another thread of the parent may have held it */
	presence_reset();
}

bool container_slice_has_neighbours(const struct token_bucket *bucket)
{
	return LOAD(bucket->schedule.tenants) > 1 && presence_is_available();
}

bool container_slice_may_be_awaited(void)
{
	unsigned int count = __atomic_load_n(&joined_count, __ATOMIC_ACQUIRE);

	while (count && !container_slice_has_neighbours(joined[count - 1]))
		count--;
	return count;
}

bool container_slice_may_run(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!container_slice_has_neighbours(bucket))
		return true;
	if (LOAD(container_slice.present) && now < LOAD(container_slice.next_look))
		return true;
	return request_slice(bucket, now, again);
}

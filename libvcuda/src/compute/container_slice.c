/* See compute/container_slice.h. Tenants can write the times of the usage region, so all are taken within bounds. */
#include "compute/container_slice.h"

#include <pthread.h>

#include <stdatomic.h>

#include "base/log.h"
#include "compute/change_cost.h"
#include "compute/neighbours.h"
#include "compute/open_slice.h"
#include "compute/presence.h"
#include "compute/process_slice.h"
#include "compute/slice_parameters.h"

#define COLLISION (20 * NS_PER_US)
#define BUSY (20 * NS_PER_US)          /* until the next try, while another thread holds `lock` */

#define LONGEST_PLACE (4 * NS_PER_S) /* a process does not stay at one place for longer */

struct container_slice container_slice;

/* Guards this process's locks and what it has seen of others: one thread at a time. */
static atomic_flag lock = ATOMIC_FLAG_INIT;

static int cancel_state; /* of the thread that holds the lock */

/* The thread that holds the lock opens files and sleeps. It is not cancelled there: the lock would stay for ever. */
static bool try_lock_slice(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	if (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {
		pthread_setcancelstate(before, NULL);
		return false;
	}
	cancel_state = before;
	return true;
}

static void unlock_slice(void)
{
	int before = cancel_state;

	atomic_flag_clear_explicit(&lock, memory_order_release);
	pthread_setcancelstate(before, NULL);
}

static void lock_slice(void)
{
	while (!try_lock_slice())
		clock_sleep_until(clock_now() + BUSY / 4);
}

static void leave_queue(void)
{
	uint64_t queued = __atomic_exchange_n(&container_slice.queued, 0, __ATOMIC_RELAXED);

	if (queued)
		presence_unqueue(queued);
}

static void stop_waiting(const struct token_bucket *bucket)
{
	STORE(neighbours.waits_from, 0);
	if (!LOAD(container_slice.queued))
		return;
	leave_queue();
	STORE(bucket->shared.slice->waiting_since, 0);
}

void container_slice_unqueue(const struct token_bucket *bucket)
{
	if (!LOAD(neighbours.waits_from) && !LOAD(container_slice.queued))
		return;
	lock_slice();
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

/* Returns how long the container's share takes to give it these tokens, within a bound either way. */
static int64_t in_time(const struct token_bucket *bucket, int64_t tokens)
{
	int64_t most = (int64_t)(SLICE_LAG * schedule_own_rate(bucket) / WHOLE);

	tokens = tokens > most ? most : tokens < -most ? -most : tokens;
	return tokens * (int64_t)WHOLE / (int64_t)schedule_own_rate(bucket);
}

/*
 * Returns by how many ns of its share the container lags: how long it takes to be given what it has not used. That is forgotten
 * with time. So where several lack some of their share for good, as changes cost it, the one that lacks more comes first, and
 * one that asks for less than its share comes before all of them. Less than 0: it is in debt. Who has used up its tokens has had
 * what was owed to it: after a pause it would else come first for each few that it gets. Called with the lock.
 */
static int64_t lag(struct token_bucket *bucket, uint64_t now)
{
	uint64_t spent = LOAD(bucket->shared.time->used) + token_bucket_in_flight(bucket) + LOAD(bucket->kept);
	uint64_t until = bounds_max(bucket->lag_at, now); /* another thread's `now` may be later */
	int64_t passed = (int64_t)bounds_min(until - bucket->lag_at, SLICE_LAG), most = SLICE_LAG;
	int64_t more = passed - in_time(bucket, (int64_t)(spent - bucket->lag_spent)) - bucket->lag * passed / most;
	int64_t left = in_time(bucket, LOAD(bucket->shared.time->level)), least = left < 0 ? left : 0;

	if (left < most / SLICE_LAG_OF_TOKENS)
		most = left > 0 ? left * SLICE_LAG_OF_TOKENS : 0;
	more = bucket->lag_at ? bucket->lag + more : 0;
	STORE(bucket->lag, more > most ? most : more < least ? least : more);
	bucket->lag_at = until;
	bucket->lag_spent = spent;
	return bucket->lag;
}

/* Whether the program has paused for long within so many ns, has used little since, and has not used up its tokens. */
static bool has_paused(const struct token_bucket *bucket, uint64_t within, uint64_t now)
{
	uint64_t quota = schedule_own_rate(bucket) * schedule_period(bucket) / WHOLE;

	return LOAD(bucket->paused_at) && now - LOAD(bucket->paused_at) < within &&
	       LOAD(bucket->shared.time->used) - LOAD(bucket->used_at_pause) < SLICE_REQUEST &&
	       LOAD(bucket->shared.time->level) >= (int64_t)(quota / 8);
}

/* Whether the program answers requests. It comes before programs that never pause, which lose nothing by it. */
static bool answers_requests(const struct token_bucket *bucket, uint64_t now)
{
	return has_paused(bucket, schedule_period(bucket), now);
}

/*
 * By how much a request comes before what is owed to others: less, the more of the card's time it has had. So short
 * requests overtake long ones. A soft share's do not get less: it borrows for the rest of its round, and would give way in
 * the middle to one that then pauses when it does.
 */
static uint64_t urgency(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t used = bounds_min(LOAD(bucket->shared.time->used) - LOAD(bucket->used_at_pause), SLICE_REQUEST);

	if (!answers_requests(bucket, now))
		return 0;
	if (schedule_idle_rate(bucket))
		return schedule_period(bucket);
	return schedule_period(bucket) / SLICE_REQUEST * (SLICE_REQUEST - used);
}

/*
 * Returns the container's place in the order in which containers run, on the host's clock: now, less its lag. Up to half a
 * period, by which containers that always have work take turns, a lag counts twice: a program that has fallen behind need not
 * lack half a period to come first. A container on several cards has one place, the latest.
 */
static uint64_t place_now(struct token_bucket *bucket, uint64_t now)
{
	int64_t least = lag(bucket, now), half = (int64_t)(schedule_period(bucket) / 2);

	for (unsigned int i = token_bucket_count(); i; i--) {
		int64_t other = token_buckets[i - 1] == bucket ? least : lag(token_buckets[i - 1], now);
		least = other < least ? other : least;
	}
	least += least < 0 ? 0 : least < half ? least : half;
	return schedule_host_time(now) - (uint64_t)least - urgency(bucket, now);
}

/* Returns the place at which this process waits. It stays the same until the process has begun or stopped waiting. */
static uint64_t waiting_place(struct token_bucket *bucket, uint64_t now)
{
	uint64_t place = LOAD(container_slice.queued), host = schedule_host_time(now);

	bool waits = place && place != LOAD(container_slice.as_borrower) && place < host + LONGEST_PLACE &&
		     host < place + LONGEST_PLACE;

	STORE(container_slice.is_urgent,
	      (waits && LOAD(container_slice.is_urgent)) || has_paused(bucket, SLICE_URGENT_FOR, now));
	return waits ? place : place_now(bucket, now);
}

/* ---- borrowing: soft shares use what nobody else wants ---- */

/* A borrower's place is ahead of the present, so it is in the way of none who has tokens, and moves with time. */
void container_slice_queue_to_borrow(struct token_bucket *bucket, uint64_t now)
{
	uint64_t host = schedule_host_time(now), period = schedule_period(bucket);
	uint64_t queued = LOAD(container_slice.queued), place = host + period;

	if (queued && queued == LOAD(container_slice.as_borrower) && queued > host + period / 2 && queued <= place)
		return;
	if (!try_lock_slice())
		return;
	stop_waiting(bucket);
	STORE(container_slice.as_borrower, place);
	STORE(container_slice.queued, place);
	presence_queue(place);
	unlock_slice();
}

/* Returns until which place others come first: those that have tokens, and borrowers that have waited longer. */
static uint64_t borrowers_turn(const struct token_bucket *bucket, uint64_t now)
{
	uint64_t host = schedule_host_time(now), from = LOAD(bucket->borrows_from);
	uint64_t queued = LOAD(container_slice.queued);

	if (LOAD(container_slice.present) && now - LOAD(container_slice.began) < SLICE_BORROWED_LEAST)
		return host - schedule_period(bucket) / 4 * 5; /* whose program answers requests, see place_now() */
	if (LOAD(container_slice.present))
		return host + PRESENCE_PLACE + (from && from < now ? bounds_min(now - from, NS_PER_S) : 0);
	return queued && queued == LOAD(container_slice.as_borrower) ? queued : host + PRESENCE_PLACE;
}

bool container_slice_borrows(struct token_bucket *bucket, uint64_t now)
{
	uint64_t where;

	if (LOAD(container_slice.present) && now - LOAD(bucket->line_seen) < SLICE_LOOK)
		return LOAD(bucket->borrows_from);
	if (!try_lock_slice())
		return false;
	bool is_wanted = presence_waiting_before(borrowers_turn(bucket, now), &where) ||
			 (!LOAD(container_slice.present) && presence_of_others(&where, 1));
	unlock_slice();
	STORE(bucket->line_seen, now);
	if (is_wanted) {
		presence_await(where);
		STORE(bucket->borrows_from, 0);
	}
	if (!is_wanted && !LOAD(bucket->borrows_from))
		STORE(bucket->borrows_from, now);
	return !is_wanted;
}

static bool goes_on(const struct token_bucket *bucket, uint64_t now)
{
	return now < LOAD(bucket->shared.slice->until);
}

/* With much under way, reserved work brings the next look forward, as time does: a slice ends as exactly. */
static void note_look(struct token_bucket *bucket, uint64_t now)
{
	bool never_pauses = now - LOAD(bucket->paused_at) > SLICE_URGENT_FOR;
	bool is_awaited = never_pauses && LOAD(bucket->schedule.tenants) == 2 &&
			  presence_is_awaited(bucket->presence) && !process_slice_others_wait(bucket);

	STORE(bucket->is_awaited, is_awaited);
	STORE(bucket->looked_until, LOAD(bucket->shared.time->level) - (int64_t)SLICE_LOOK);
	STORE(container_slice.next_look, now + SLICE_LOOK);
}

/* ---- the lease ---- */

static void set_mixed(bool is_mixed)
{
	STORE(container_slice.is_mixed, is_mixed);
	if (is_mixed)
		STORE(container_slice.was_mixed, 1);
}

static void take_lease(uint64_t until, uint64_t now)
{
	until = bounds_min(until, now + PRESENCE_LEASE_MOST - SLICE_LEASE);
	STORE(container_slice.leased_until, until);
	presence_lease(schedule_host_time(until), LOAD(container_slice.is_open)   ? PRESENCE_LETS_ALL
						  : LOAD(container_slice.lets_in) ? PRESENCE_LETS_URGENT
										  : PRESENCE_LETS_NOBODY);
}

/* Whether the process was stopped for so long that others may run by now. It then leaves as soon as its work ends. */
static bool has_lapsed(uint64_t now)
{
	if (LOAD(container_slice.present) && now > LOAD(container_slice.leased_until)) {
		STORE(container_slice.has_lapsed, 1);
		set_mixed(true);
	}
	return LOAD(container_slice.has_lapsed);
}

/* Either the thread that leaves sees the work in flight, or the one that launches sees that the container has left. */
bool container_slice_has_begun(const struct token_bucket *bucket)
{
	atomic_thread_fence(memory_order_seq_cst);
	return LOAD(container_slice.present) || !container_slice_has_neighbours(bucket);
}

/* Returns when the work under way on all cards should be done. */
static uint64_t work_ends(uint64_t now)
{
	uint64_t ends = now;

	for (unsigned int i = token_bucket_count(); i; i--)
		if (token_bucket_in_flight(token_buckets[i - 1]))
			ends = bounds_max(ends, LOAD(token_buckets[i - 1]->finish));
	return ends;
}

void container_slice_extend_lease(bool is_known, bool is_certain, uint64_t now)
{
	uint64_t ends = work_ends(now), until = LOAD(container_slice.leased_until);
	bool changes = __atomic_exchange_n(&container_slice.lets_in, is_certain, __ATOMIC_RELAXED) != is_certain;

	if (!LOAD(container_slice.present) || has_lapsed(now))
		return;
	if (!changes && is_known && until >= ends + SLICE_LEASE_LEAST && until <= ends + 2 * SLICE_LEASE)
		return;
	lock_slice();
	if (LOAD(container_slice.present))
		take_lease(ends + (is_known ? SLICE_LEASE : SLICE_LEASE_UNKNOWN), now);
	unlock_slice();
}

/* The poller's part: work takes longer than expected. Returns when to do this again. */
static uint64_t renew_lease(uint64_t now)
{
	uint64_t until = LOAD(container_slice.leased_until), ends = work_ends(now);

	if (until < bounds_max(ends + (LOAD(container_slice.lets_in) ? SLICE_LEASE_LEAST : 0), now + NS_PER_MS) &&
	    try_lock_slice()) {
		if (LOAD(container_slice.present))
			take_lease(ends + SLICE_LEASE, now);
		unlock_slice();
	}
	return bounds_max(LOAD(container_slice.leased_until) - NS_PER_MS, now + BUSY);
}

/* An ignored container that has dropped its lock counts again. One that still holds its lock stays ignored. */
static void leave_card(void)
{
	open_slice_left(!LOAD(container_slice.was_mixed), clock_now());
	(void)presence_ignores();
	presence_drop();
	presence_wake_next();
}

/*
 * Two containers began at the same moment if another one appears between the look and the lock. The one with the lower
 * number goes on. The other one gives way, and wakes those that saw its lock.
 */
static bool gives_way(uint64_t now)
{
	uint64_t where;

	if (neighbours_are_distrusted(now) || !presence_of_others(&where, 1))
		return false;
	if (presence_is_before_others()) {
		clock_sleep_until(now + COLLISION / 2);
		if (!presence_of_others(&where, 1))
			return false;
	}
	presence_drop();
	presence_wake_next();
	return true;
}

/* Lets others into a slice that has shown how much of it the program uses. */
static void open_own_slice(uint64_t now)
{
	if (LOAD(container_slice.was_mixed) || !open_slice_is_measured(now))
		return;
	open_slice_left(true, now);
	open_slice_begun(0, now);
	STORE(container_slice.is_open, open_slice_is_wanted(now));
	if (LOAD(container_slice.is_open))
		take_lease(LOAD(container_slice.leased_until), now);
}

/* What is owed to a container that uses all of its slices it gets in slices of its own. */
static enum neighbours_want wanted(struct token_bucket *bucket, uint64_t now)
{
	bool is_open = open_slice_is_wanted(now);

	if (LOAD(container_slice.is_urgent) && !is_open)
		return NEIGHBOURS_WANT_SOON;
	bool is_behind = place_now(bucket, now) + schedule_period(bucket) <= schedule_host_time(now);
	if (open_slice_own_is_due(now) || LOAD(bucket->unsure) >= SLICE_OPEN_UNSURE ||
	    (is_behind && !is_open && !open_slice_may_help()))
		return NEIGHBOURS_WANT_ALONE;
	return NEIGHBOURS_WANT_ROOM;
}

static bool try_begin(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t place = waiting_place(bucket, now), where;
	uint64_t waited = LOAD(neighbours.waits_from) ? now - LOAD(neighbours.waits_from) : 0;
	bool is_next = false;

	if (neighbours_must_wait(bucket, place, goes_on(bucket, now), wanted(bucket, now), now, &is_next)) {
		join_queue(bucket, place, now);
		*again = now + (is_next ? SLICE_LOOK_AS_NEXT : SLICE_LOOK_AGAIN);
		return false;
	}
	bool is_open = open_slice_is_wanted(now) || neighbours.is_guest; /* its host can return at any time */
	STORE(container_slice.is_open, is_open && wanted(bucket, now) == NEIGHBOURS_WANT_ROOM);
	take_lease(now + SLICE_LEASE, now);
	presence_hold();
	if (!neighbours.is_guest && gives_way(now)) {
		join_queue(bucket, place, now);
		*again = now + COLLISION;
		return false;
	}
	bool others = presence_of_others(&where, 1);
	open_slice_begun(waited, now);
	stop_waiting(bucket);
	STORE(bucket->shared.slice->waiting_since, 0);
	STORE(container_slice.was_mixed, 0);
	set_mixed(others || presence_ignores());
	STORE(container_slice.is_over, 0);
	STORE(container_slice.has_lapsed, 0);
	STORE(container_slice.began, now);
	STORE(container_slice.present, 1);
	/* Until the slice is over, other processes of the container need not queue to take part in it. */
	STORE(bucket->shared.slice->until, now + schedule_period(bucket));
	STORE(bucket->was_waited_for, waited != 0);
	STORE(bucket->has_new_slice, 1);
	note_look(bucket, now);
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
static bool is_behind_others(struct token_bucket *bucket, uint64_t now)
{
	uint64_t where;

	return neighbours_may_end_slice(bucket, container_slice.began, now) &&
	       presence_waiting_before(place_now(bucket, now) - schedule_period(bucket) / 2, &where);
}

/* Whether the container is to have a slice of its own, and not one beside others: a request has become more than that. */
static bool is_out_of_place(struct token_bucket *bucket, uint64_t now)
{
	bool came_urgently = neighbours.is_guest && !LOAD(container_slice.is_open);

	return wanted(bucket, now) == NEIGHBOURS_WANT_ALONE ||
	       (came_urgently && !has_paused(bucket, SLICE_URGENT_FOR, now));
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
	bool ignores = presence_ignores();
	set_mixed(presence_of_others(&where, 1) || ignores);
	open_own_slice(now);
	bool is_over = has_lapsed(now) || (!LOAD(bucket->borrows_from) && is_behind_others(bucket, now)) ||
		       (LOAD(container_slice.is_mixed) && !ignores && is_out_of_place(bucket, now));
	STORE(container_slice.is_over, is_over);
	STORE(container_slice.next_look, 0);
	if (!is_over) {
		note_look(bucket, now);
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

/* Whether the program's pauses are so short that the container keeps its slice through them. */
static bool sits_through_pauses(const struct token_bucket *bucket)
{
	return LOAD(bucket->mean_pause) < SLICE_WORTH(change_cost(bucket));
}

/* Returns until when the container stays without work. */
static uint64_t stays_until(const struct token_bucket *bucket, uint64_t now)
{
	if (LOAD(container_slice.is_over))
		return 0;
	if (LOAD(bucket->is_throttled) &&
	    LOAD(bucket->shared.time->level) < (int64_t)schedule_refill_threshold(bucket, now))
		return 0;
	bool launches_next = LOAD(bucket->shared.time->holder) == bucket->shared.slot + 1 &&
			     LOAD(token_bucket_own_flight(bucket)->waiting);
	if (launches_next) /* as soon as its thread wakes, perhaps late */
		return bounds_max(LOAD(bucket->shared.time->progress), LOAD(bucket->finish)) + SLICE_STAY / 2 +
		       clock_lateness() / 2;
	if (!sits_through_pauses(bucket))
		return answers_requests(bucket, now) ? LOAD(bucket->shared.time->progress) + SLICE_LINGER : 0;
	return LOAD(bucket->shared.time->progress) + bounds_max(SLICE_STAY, SLICE_WORTH(change_cost(bucket)));
}

/* The work under way ends later, by the time in which others worked. */
static void put_off(uint64_t by)
{
	for (unsigned int i = token_bucket_count(); i; i--)
		if (token_bucket_in_flight(token_buckets[i - 1]))
			STORE(token_buckets[i - 1]->finish, LOAD(token_buckets[i - 1]->finish) + by);
}

/* Whether work is under way that lasts for so long that others may run beside it. */
static bool is_long(uint64_t now)
{
	return LOAD(container_slice.present) && LOAD(container_slice.leased_until) + NS_PER_MS > now + PRESENCE_LONG;
}

static bool has_work(void)
{
	for (unsigned int i = token_bucket_count(); i; i--)
		if (token_bucket_in_flight(token_buckets[i - 1]))
			return true;
	return false;
}

static void end_slice(uint64_t now)
{
	STORE(container_slice.present, 0);
	atomic_thread_fence(memory_order_seq_cst); /* as in container_slice_has_begun() */
	if (has_work()) { /* another thread has launched meanwhile */
		STORE(container_slice.present, 1);
		return;
	}
	for (unsigned int i = token_bucket_count(); i; i--) {
		struct token_bucket *bucket = token_buckets[i - 1];
		if (LOAD(bucket->shared.time->holder) == bucket->shared.slot + 1 || !goes_on(bucket, now))
			STORE(bucket->shared.slice->until, 0);
	}
	leave_card();
}

/*
 * Looks at the others between the beginning and the end of a slice, too: two containers that ignore each other hardly ever
 * begin or leave while the other is away, and others may run beside a long launch.
 */
static void look_at_others(uint64_t now)
{
	static uint64_t looked_at;
	uint64_t where;

	if (now < LOAD(looked_at) + SLICE_LOOK || !(LOAD(container_slice.is_mixed) || is_long(now)) ||
	    !try_lock_slice())
		return;
	(void)presence_ignores();
	if (LOAD(container_slice.present) && presence_of_others(&where, 1)) {
		set_mixed(true);
		if (is_long(now) && LOAD(container_slice.lets_in))
			put_off(now - bounds_max(looked_at, now - 2 * NS_PER_MS));
	}
	STORE(looked_at, now);
	unlock_slice();
}

uint64_t container_slice_tidy(uint64_t now)
{
	uint64_t until = 0;

	look_at_others(now);
	if (!LOAD(container_slice.present))
		return UINT64_MAX;
	if (has_work())
		return bounds_min(renew_lease(now), is_long(now) ? now + NS_PER_MS : UINT64_MAX);
	for (unsigned int i = token_bucket_count(); i; i--)
		until = bounds_max(until, stays_until(token_buckets[i - 1], now));
	if (now < until)
		return bounds_min(until, renew_lease(now));
	if (!try_lock_slice())
		return now + BUSY;
	if (LOAD(container_slice.present)) /* another thread may have left meanwhile */
		end_slice(now);
	unlock_slice();
	return UINT64_MAX;
}

bool container_slice_waits_for_launches(const struct token_bucket *bucket, uint64_t now)
{
	for (unsigned int i = token_bucket_count(); i; i--) {
		const struct token_bucket *other = token_buckets[i - 1];
		uint64_t progress = LOAD(other->shared.time->progress);
		if (other != bucket && !LOAD(other->in_flight) && progress && now - progress < schedule_period(bucket))
			return true;
	}
	return false;
}

void container_slice_reset(void)
{
	container_slice = (struct container_slice){0};
	atomic_flag_clear_explicit(&lock, memory_order_release); /* another thread of the parent may have held it */
	neighbours_reset();
	open_slice_reset();
	presence_reset();
}

bool container_slice_has_neighbours(const struct token_bucket *bucket)
{
	return LOAD(bucket->schedule.tenants) > 1 && presence_is_available(bucket->presence);
}

bool container_slice_may_be_awaited(void)
{
	unsigned int count = token_bucket_count();

	while (count && !container_slice_has_neighbours(token_buckets[count - 1]))
		count--;
	return count;
}

bool container_slice_leaves_in_pauses(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && !sits_through_pauses(bucket);
}

bool container_slice_is_mixed(const struct token_bucket *bucket)
{
	if (LOAD(bucket->schedule.tenants) > 1 && presence_is_slow(bucket->presence))
		return true;
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.is_mixed);
}

bool container_slice_is_open(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(container_slice.is_open);
}

void container_slice_note_lapse(const struct token_bucket *bucket, uint64_t now)
{
	if (container_slice_has_neighbours(bucket))
		(void)has_lapsed(now);
}

bool container_slice_is_leaving(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && (LOAD(bucket->is_throttled) || LOAD(container_slice.is_over));
}

bool container_slice_may_run(struct token_bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!container_slice_has_neighbours(bucket))
		return true;
	if (LOAD(container_slice.present) && now < LOAD(container_slice.next_look) &&
	    (!LOAD(bucket->is_awaited) || LOAD(bucket->shared.time->level) > LOAD(bucket->looked_until)))
		return true;
	return request_slice(bucket, now, again);
}

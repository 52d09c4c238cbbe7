/* See compute/neighbours.h. */
#include "compute/neighbours.h"

#include "base/log.h"
#include "compute/change_cost.h"
#include "compute/presence.h"
#include "compute/schedule.h"
#include "compute/slice_parameters.h"

#define NOWHERE UINT64_MAX

enum { LISTED = 8 };

struct in_way {
	uint64_t where, since, seen;
};

struct neighbours neighbours;

static bool has_waited_in_vain; /* for a container that is now ignored, and may have used nothing */

/* How long this process waits for a lock without a lease: two periods and a long kernel. */
static uint64_t patience(const struct token_bucket *bucket)
{
	return 2 * schedule_period(bucket) + SLICE_EXTRA_PATIENCE;
}

static bool ignore(uint64_t where)
{
	presence_ignore(where);
	return false;
}

/* Whether this program's requests are so short, and changes so cheap, that they enter open slices at once. */
static bool is_short_guest(const struct token_bucket *bucket)
{
	return LOAD(bucket->shared.time->longest) < SLICE_LONG && change_cost(bucket) < SLICE_OPEN_CHANGE;
}

/* Whether this process waits for a container at work. Else it ignores that one until it leaves. */
static bool is_in_way(const struct token_bucket *bucket, const struct in_way *way, enum neighbours_want want,
		      uint64_t now)
{
	enum presence_lease lease = presence_lease_of(way->where, schedule_host_time(now));

	if (lease >= PRESENCE_LEASED) {
		bool is_open = lease >= PRESENCE_OPEN;
		bool is_long = lease == PRESENCE_LEASED_LONG || lease == PRESENCE_OPEN_LONG;
		bool enters = want == NEIGHBOURS_WANT_ROOM || (want == NEIGHBOURS_WANT_SOON && is_short_guest(bucket));
		bool lets_in = (is_long && want == NEIGHBOURS_WANT_SOON) || (is_open && enters);
		neighbours.is_guest |= lets_in;
		return !lets_in;
	}
	if (lease == PRESENCE_NO_LEASE && now - way->since < patience(bucket))
		return true;
	has_waited_in_vain |= lease == PRESENCE_NO_LEASE;
	return ignore(way->where);
}

static struct in_way *find_place(struct in_way *places, uint64_t where)
{
	struct in_way *oldest = places;

	for (int i = 0; i < LISTED; i++) {
		if (places[i].where == where)
			return &places[i];
		if (places[i].seen < oldest->seen)
			oldest = &places[i];
	}
	return oldest;
}

/* The wait for each lock is timed by itself, so that containers that come and go do not excuse one that stays. */
static bool others_are_in_way(const struct token_bucket *bucket, enum neighbours_want want, uint64_t now)
{
	static struct in_way places[LISTED];
	uint64_t where[LISTED];
	unsigned int count = presence_of_others(where, LISTED);
	bool is_waited_for = count == LISTED; /* the list is full: there may be more */

	neighbours.is_guest = false;
	for (unsigned int i = 0; i < count; i++) {
		struct in_way *place = find_place(places, where[i]);
		if (where[i] != place->where || now - place->seen > SLICE_FORGOTTEN)
			*place = (struct in_way){.where = where[i], .since = now};
		place->seen = now;
		if (!is_in_way(bucket, place, want, now))
			continue;
		is_waited_for = true;
		presence_await(where[i]);
	}
	for (int i = 0; i < LISTED; i++) /* the wait for a container that left and returns starts anew */
		if (places[i].seen != now)
			places[i].where = NOWHERE;
	return is_waited_for;
}

/* ---- the queue: who is next and does not come loses its turn, and for a while nobody's slice ends early ---- */

static uint64_t free_from;   /* since when the card is free, and another process is next; 0: it is not */
static uint64_t free_seen;
static uint64_t no_early_end_until, no_early_end_for;

/* A container that was next has come. */
static void note_turn_taken(void)
{
	if (free_from)
		no_early_end_for /= 2;
	free_from = 0;
}

static void note_turn_missed(uint64_t now)
{
	free_from = 0;
	no_early_end_for = bounds_clamp(2 * no_early_end_for, SLICE_NO_EARLY_END, SLICE_NO_EARLY_END_MOST);
	no_early_end_until = now + no_early_end_for;
}

/*
 * For how long this process has left a free card to others, less a part of the time. They may claim one early place after
 * the other, and come late or never. Together they get that part, and then the card is taken whoever is next.
 */
static struct {
	uint64_t sum, seen;
	bool is_too_long;
} left_free;

static void note_card_free(uint64_t now)
{
	left_free.sum -= bounds_min(left_free.sum, (now - left_free.seen) / SLICE_LEFT_FREE_PART);
	left_free.seen = now;
	if (free_from)
		left_free.sum += now - free_seen;
	left_free.is_too_long = left_free.sum > (left_free.is_too_long ? SLICE_LEFT_FREE / 2 : SLICE_LEFT_FREE);
}

/* Whether this process leaves a free card to those that are before it. It waits once for one that does not come. */
static bool waits_for_turn(uint64_t place, uint64_t now)
{
	uint64_t where;
	unsigned int before = presence_earliest_before(place, &where);

	if (free_from && now - free_seen > SLICE_FORGOTTEN)
		free_from = 0;
	if (before)
		note_card_free(now);
	if (!before || left_free.is_too_long) {
		free_from = 0;
		return false;
	}
	if (!free_from)
		free_from = now;
	free_seen = now;
	presence_await(where);
	if (now - free_from < before * SLICE_LATE)
		return true;
	note_turn_missed(now);
	return ignore(where);
}

static bool others_come_first(const struct token_bucket *bucket, uint64_t place, bool goes_on,
			      enum neighbours_want want, uint64_t now, bool *is_next)
{
	uint64_t where;

	*is_next = true;
	if (others_are_in_way(bucket, want, now)) {
		note_turn_taken();
		*is_next = want == NEIGHBOURS_WANT_SOON; /* who leaves wakes the next one */
		return true;
	}
	if (neighbours.is_guest && want == NEIGHBOURS_WANT_ROOM) /* its hosts leave for those that are before it */
		return !goes_on && presence_earliest_before(place, &where);
	return !goes_on && waits_for_turn(place, now);
}

bool neighbours_may_end_slice(const struct token_bucket *bucket, uint64_t began, uint64_t now)
{
	if (neighbours_are_distrusted(now))
		return false;
	return now >= no_early_end_until || now - began >= schedule_period(bucket) / 2;
}

/* ---- the sum of all waits ---- */

bool neighbours_are_distrusted(uint64_t now)
{
	return now < LOAD(neighbours.distrusts_until);
}

/* Takes away the tokens beyond one quota. */
static void forgo(struct token_bucket *bucket, uint64_t now)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t tokens = LOAD(*word), quota = (int64_t)schedule_quota(bucket, now);

	while (tokens > quota &&
	       !__atomic_compare_exchange_n(word, &tokens, quota, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}

/*
 * Returns for how long others have held this process up beyond what is theirs. All of them together may use the card
 * for the rest of the time beside this container's share.
 */
static uint64_t held_up_for(const struct token_bucket *bucket, uint64_t now)
{
	static uint64_t last, sum;
	uint64_t rate = schedule_own_rate(bucket), passed = last && last < now ? now - last : 0;

	/* Since the last look the process may have stopped waiting for others, as without tokens or for its own container. */
	if (LOAD(neighbours.waits_from))
		sum += bounds_min(passed, SLICE_ABSENT) * rate / WHOLE;
	else
		sum -= bounds_min(sum, passed * (WHOLE - rate) / WHOLE);
	last = now;
	return sum * WHOLE / rate;
}

static bool is_held_up_too_long(const struct token_bucket *bucket, bool waits, uint64_t now)
{
	uint64_t most = LOAD(bucket->schedule.tenants) > 2 ? SLICE_LONGEST_WAIT_OF_MANY : SLICE_LONGEST_WAIT;

	return held_up_for(bucket, now) >= most && waits;
}

/* What it waited for in vain is not owed to it. */
static void stop_waiting_for_others(struct token_bucket *bucket, uint64_t now)
{
	STORE(neighbours.waits_from, 0);
	if (has_waited_in_vain)
		forgo(bucket, now);
	has_waited_in_vain = false;
}

static void distrust(struct token_bucket *bucket, uint64_t from, uint64_t length)
{
	STORE(neighbours.distrusts_until, from + length);
	stop_waiting_for_others(bucket, from);
}

/* However many locks other containers hold, they do not hold this one up for ever. */
bool neighbours_must_wait(struct token_bucket *bucket, uint64_t place, bool goes_on, enum neighbours_want want,
			  uint64_t now, bool *is_next)
{
	static uint64_t distrust_for = SLICE_DISTRUST;

	if (neighbours_are_distrusted(now))
		return false;
	bool waits = others_come_first(bucket, place, goes_on, want, now, is_next);
	if (presence_saw_range()) {
		log_once(LOG_WARNING, "another container hides the presence of all containers; it is not waited for");
		distrust(bucket, now, SLICE_HIDDEN);
		return false;
	}
	if (is_held_up_too_long(bucket, waits, now)) {
		log_once(LOG_WARNING, "other containers have held the card for seconds; ignoring them for a minute");
		has_waited_in_vain = true;
		distrust(bucket, now, distrust_for);
		distrust_for = bounds_min(2 * distrust_for, SLICE_DISTRUST_MOST);
		return false;
	}
	if (!waits)
		stop_waiting_for_others(bucket, now);
	else if (!LOAD(neighbours.waits_from))
		STORE(neighbours.waits_from, now);
	return waits;
}

void neighbours_reset(void)
{
	neighbours = (struct neighbours){0};
}

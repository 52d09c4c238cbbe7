/* See compute/account.h. Tenants can write the times of other processes, so all are taken within bounds. */
#include "compute/account.h"

#include "compute/container_slice.h"
#include "compute/neighbours.h"
#include "compute/process_slice.h"
#include "compute/slice_parameters.h"

#define REFILL_EACH (20 * NS_PER_US)
#define HOLDER_ABSENT (20 * NS_PER_MS) /* a process that has the time slice and wants the card looks more often */
#define MOST_DEBT (60 * (int64_t)NS_PER_S)
#define BURST_ALONE (100 * NS_PER_MS)  /* of its share, what a container that is alone on its card may use at once */
#define NEVER_MEASURED (20 * NS_PER_MS) /* beyond its estimate, a kernel that was never measured may take so long */

/* Work that often ends early is looked at so many times before it should end, so often at most. */
enum { LOOKS = 16 };
#define LOOK_LEAST (100 * NS_PER_US)

/*
 * Returns the capacity: one quota, for a burst. While the container waits for others, what they take is owed to it beyond that,
 * and one quota more of what it has not worked off. It loses nothing while it works that off.
 */
static uint64_t capacity(const struct token_bucket *bucket, uint64_t elapsed, uint64_t now)
{
	uint64_t quota = bounds_max(schedule_quota(bucket, now), 2 * NS_PER_MS);
	uint64_t waits_from = LOAD(neighbours.waits_from);

	if (!container_slice_may_be_awaited()) /* on another card neither, where the same threads may have to wait */
		return bounds_max(quota, schedule_rate(bucket, now) * BURST_ALONE / WHOLE);
	if (!container_slice_has_neighbours(bucket) || elapsed > SLICE_ABSENT)
		return quota;
	if (waits_from && waits_from < now)
		return 2 * quota + bounds_min(now - waits_from, SLICE_MOST_OWED) * schedule_own_rate(bucket) / WHOLE;
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
	uint64_t most =
		schedule_idle_rate(bucket) < WHOLE ? 2 * schedule_refill_threshold(bucket, now) : SLICE_BORROWED;

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
	       container_slice_has_neighbours(bucket) &&
	       LOAD(bucket->shared.time->level) + (int64_t)gain > (int64_t)most;
}

/* Adds the container's share of the time that has passed. Of several threads, the one that moves the stamp adds it. */
bool account_refill(struct token_bucket *bucket, uint64_t now)
{
	bool is_idle = borrows(bucket, now);
	uint64_t *word = &bucket->shared.time->stamp;
	uint64_t stamp = LOAD(*word);

	if (now - stamp < REFILL_EACH || (stamp > now && stamp - now < NS_PER_S))
		return is_idle;
	uint64_t elapsed =
		stamp && stamp < now ? bounds_min(now - stamp, (uint64_t)MOST_DEBT * 100) : schedule_period(bucket);
	uint64_t rate = schedule_rate(bucket, now), idle_rate = schedule_idle_rate(bucket);
	uint64_t gain = elapsed * rate / WHOLE, most = capacity(bucket, elapsed, now);
	if (leaves_to_holder(bucket, gain, most, elapsed) || !atomics_swap(word, stamp, now))
		return is_idle;
	add_tokens(bucket, gain, (int64_t)most);
	if (is_idle && idle_rate > rate)
		add_tokens(bucket, elapsed * (idle_rate - rate) / WHOLE, most_borrowed(bucket, now));
	return is_idle;
}

static uint32_t units_of(uint64_t ns)
{
	return (uint32_t)((ns + VGPU_USAGE_TIME_UNIT - 1) / VGPU_USAGE_TIME_UNIT);
}

/* Writes the word that the container's other processes read. This process never reads it. */
static void publish_in_flight(struct token_bucket *bucket)
{
	STORE(token_bucket_own_flight(bucket)->in_flight, LOAD(bucket->in_flight));
}

static void end_in_flight(struct token_bucket *bucket, uint64_t reserved)
{
	uint32_t *word = &bucket->in_flight;
	uint32_t in_flight = LOAD(*word);
	uint32_t less = units_of(reserved);

	while (!__atomic_compare_exchange_n(word, &in_flight, in_flight > less ? in_flight - less : 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
	publish_in_flight(bucket);
}

void account_release(struct token_bucket *bucket, uint64_t estimate)
{
	__atomic_fetch_add(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	end_in_flight(bucket, estimate);
	STORE(bucket->finish, LOAD(bucket->finish) - estimate);
}

void account_book(struct token_bucket *bucket, uint64_t more, uint64_t now)
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

bool account_ends_early(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(bucket->unsure) >= SLICE_EARLY;
}

uint64_t account_look_each(const struct token_bucket *bucket, uint64_t expected)
{
	return account_ends_early(bucket) ? bounds_clamp(expected / LOOKS, LOOK_LEAST, NS_PER_MS) : NS_PER_S;
}

/* A thread that waits for room need not lose the card, which the container is about to leave without work. */
static void wake_own(const struct token_bucket *bucket)
{
	uint32_t *word = &token_bucket_own_flight(bucket)->waiting;

	if (LOAD(*word) && !container_slice_is_mixed(bucket))
		clock_wake(word);
}

void account_complete(struct token_bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t ended,
		      uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_add(&time->level, (int64_t)booked - (int64_t)used, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);
	end_in_flight(bucket, reserved);
	if (!container_slice_is_mixed(bucket) && !container_slice_is_open(bucket))
		note_early_end(bucket, reserved, used);
	STORE(time->progress, now);
	uint64_t finish = bounds_max(now, (LOAD(bucket->is_awaited) ? ended : now) + token_bucket_in_flight(bucket));
	STORE(bucket->finish, finish);
	if (finish == now)
		wake_own(bucket);
	if (LOAD(time->holder) == bucket->shared.slot + 1) {
		STORE(time->drains_at, finish);
		if (finish == now && process_slice_is_over(bucket, now))
			process_slice_hand_over(bucket);
	}
}

uint64_t account_uncounted(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	from = bounds_max(from, LOAD(bucket->counted_until));
	if (to <= from)
		return 0;
	STORE(bucket->counted_until, to);
	return to - from;
}

void account_count_back(struct token_bucket *bucket, uint64_t from, uint64_t to)
{
	(void)atomics_swap(&bucket->counted_until, from, to);
}

static void expect(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	uint64_t finish = bounds_max(LOAD(bucket->finish), now) + estimate;

	STORE(bucket->finish, finish); /* a race of threads makes this estimate a little worse */
	STORE(bucket->shared.time->drains_at, is_known ? finish : finish + NEVER_MEASURED);
}

void account_reserve(struct token_bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	__atomic_fetch_sub(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	if (!__atomic_fetch_add(&bucket->in_flight, units_of(estimate), __ATOMIC_RELAXED))
		STORE(bucket->shared.time->progress, now);
	publish_in_flight(bucket);
	expect(bucket, estimate, is_known, now);
}

void account_measured(struct token_bucket *bucket, uint64_t ns)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t longest = LOAD(time->longest);

	STORE(time->longest, bounds_max(ns, longest - longest / 64));
	STORE(time->patience, bounds_max(4 * ns, LOAD(time->patience)));
}

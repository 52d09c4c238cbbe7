/* See bucket.h. Times of other processes stand in memory that tenants can write: all are taken within bounds. */
#include "bucket.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cards.h"
#include "clock.h"
#include "limits_file.h"
#include "log.h"

#define WHOLE ((uint64_t)1000000)     /* rates are in millionths */
#define PERCENT (WHOLE / 100)
#define PERIOD (20 * NS_PER_MS)       /* where the host tells none */
#define ACCRUE_EACH (20 * NS_PER_US)
#define MOST_DEBT (60 * (int64_t)NS_PER_S)
#define QUANTUM (10 * NS_PER_MS)      /* of use by a process, while others of the container wait; */
#define LONGEST_TURN (100 * NS_PER_MS) /* by the clock */
#define LEAD (50 * NS_PER_US)         /* a phase's first launch is on its way before it begins */
#define OVERDUE (2 * NS_PER_MS)       /* a turn whose work should have been done is taken */
#define COURTESY (300 * NS_PER_US)    /* how long who has waited longer may take to take a free turn, */
#define GRACE (150 * NS_PER_US)       /* and who has it, to go on: changing contexts costs */
#define LATE_LOOK (5 * NS_PER_MS)     /* of those who will be woken when it is their turn */
#define PATIENCE (20 * NS_PER_MS)     /* with work on another card: kernels of groups wait for each other there */
#define PATIENCE_HERE NS_PER_S        /* with another process' on this card: it may just be long */
#define SLICE (2 * NS_PER_MS)         /* the hardware's, at most: how late it may change contexts */
#define LOOK_EACH (200 * NS_PER_MS)   /* for a page that was not there */

enum { DEVICES = 64 };

static struct bucket *buckets[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

static bool swap(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t within(uint64_t value, uint64_t low, uint64_t high)
{
	return most(low, least(value, high));
}

/* ---- a card's bucket ---- */

/* Without a region each process is held to the share by itself: better than none of them. */
static void account_alone(struct bucket *bucket)
{
	struct vgpu_usage_time *time = calloc(1, sizeof(*time) + sizeof(struct vgpu_usage_flight));

	log_once(LOG_ERROR, "no usage region: each process is held to the core share by itself");
	bucket->is_local = 1;
	bucket->shared = (struct usage_time){time, time ? (struct vgpu_usage_flight *)(time + 1) : NULL, 0};
}

static struct bucket *make(CUdevice device, const struct limited_card *card)
{
	struct bucket *bucket = calloc(1, sizeof(*bucket));

	if (!bucket)
		return NULL;
	bucket->device = device;
	memcpy(bucket->uuid, card->uuid, sizeof(bucket->uuid));
	bucket->limits_seen = UINT64_MAX;
	if (!usage_time(card->uuid, &bucket->shared))
		account_alone(bucket);
	if (bucket->shared.time)
		return bucket;
	free(bucket);
	return NULL;
}

static struct bucket *find(CUdevice device)
{
	return __atomic_load_n(&buckets[device], __ATOMIC_ACQUIRE);
}

struct bucket *bucket_of_device(CUdevice device)
{
	struct limited_card card;

	if (device < 0 || device >= DEVICES || limits_state() != LIMITS_PRESENT)
		return NULL;
	if (find(device) || !card_of_device(device, &card))
		return find(device);
	pthread_mutex_lock(&lock);
	if (!find(device))
		__atomic_store_n(&buckets[device], make(device, &card), __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return find(device);
}

void buckets_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	memset(buckets, 0, sizeof(buckets)); /* the parent's were copied, not shared: a few hundred bytes are lost */
}

/* A card that is no longer listed keeps its last limits. */
static void take_over_limits(struct bucket *bucket)
{
	struct card_limits limits;
	uint64_t seen = limits_sequence();

	if (limits_of(bucket->uuid, &limits)) {
		STORE(bucket->ceiling, within(limits.core_limit, 1, 100));
		STORE(bucket->share, within(limits.cores, 1, 100)); /* nobody starves for good */
	}
	STORE(bucket->limits_seen, seen);
}

bool bucket_is_open(struct bucket *bucket)
{
	if (limits_sequence() != LOAD(bucket->limits_seen))
		take_over_limits(bucket);
	return LOAD(bucket->share) >= 100;
}

/* ---- what the host says about when ---- */

static void look_for_page(struct bucket *bucket, uint64_t now)
{
	if (now - LOAD(bucket->page_looked_at) < LOOK_EACH)
		return;
	STORE(bucket->page_looked_at, now);
	__atomic_store_n(&bucket->page, card_page_find(bucket->uuid, now), __ATOMIC_RELEASE);
	STORE(bucket->times.seen, UINT64_MAX);
}

static void take_over_times(struct bucket *bucket, const struct vgpu_card_page *page)
{
	struct card_times times;

	if (!card_page_read(page, &times))
		return;
	STORE(bucket->times.period, times.period);
	STORE(bucket->times.phase_start, times.phase_start);
	STORE(bucket->times.phase_length, times.phase_length);
	STORE(bucket->times.lent_until, times.lent_until);
	STORE(bucket->times.lent_rate, times.lent_rate);
	STORE(bucket->times.tenants, times.tenants);
	STORE(bucket->times.share, times.share);
	STORE(bucket->times.lent_start, times.lent_start);
	STORE(bucket->times.lent_length, times.lent_length);
	STORE(bucket->phase_end, 0);
	STORE(bucket->times.seen, times.seen);
}

static void follow_page(struct bucket *bucket, uint64_t now)
{
	const struct vgpu_card_page *page = __atomic_load_n(&bucket->page, __ATOMIC_ACQUIRE);

	if (!page)
		look_for_page(bucket, now);
	else if (card_page_moved(page, LOAD(bucket->times.seen)))
		take_over_times(bucket, page);
}

static bool is_lent(const struct bucket *bucket, uint64_t now)
{
	uint64_t until = LOAD(bucket->times.lent_until);

	return until && now + (uint64_t)card_page_clock_offset() < until;
}

/* millionths of the card's time that the container may use now */
static uint64_t rate(const struct bucket *bucket, uint64_t now)
{
	uint64_t share = LOAD(bucket->share) * PERCENT, told = LOAD(bucket->times.share);

	if (is_lent(bucket, now))
		return most(share, least(LOAD(bucket->times.lent_rate), LOAD(bucket->ceiling)) * PERCENT);
	return told ? least(told, share) : share;
}

static uint64_t period(const struct bucket *bucket)
{
	uint64_t told = LOAD(bucket->times.period);

	return told ? told : PERIOD;
}

/* ns of the card per period at the present rate */
static uint64_t ration(const struct bucket *bucket, uint64_t now)
{
	return rate(bucket, now) * period(bucket) / WHOLE;
}

/* ---- the account ---- */

static uint64_t most_level(const struct bucket *bucket, uint64_t now)
{
	return most(ration(bucket, now), 2 * NS_PER_MS);
}

static void add_level(struct bucket *bucket, uint64_t gain, int64_t most_allowed)
{
	int64_t *word = &bucket->shared.time->level;
	int64_t level = LOAD(*word);
	int64_t now;

	do {
		if (level < -MOST_DEBT || level > most_allowed + MOST_DEBT) /* somebody scribbled */
			now = 0;
		else if (level >= most_allowed)
			return;
		else
			now = level + (int64_t)gain < most_allowed ? level + (int64_t)gain : most_allowed;
	} while (!__atomic_compare_exchange_n(word, &level, now, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* Adds the share of the time that went by; whoever moves the stamp adds it. */
static void accrue(struct bucket *bucket, uint64_t now)
{
	uint64_t *word = &bucket->shared.time->stamp;
	uint64_t stamp = LOAD(*word);

	if (now - stamp < ACCRUE_EACH || (stamp > now && stamp - now < NS_PER_S) || !swap(word, stamp, now))
		return;
	uint64_t elapsed = stamp && stamp < now ? least(now - stamp, (uint64_t)MOST_DEBT * 100) : period(bucket);
	add_level(bucket, elapsed * rate(bucket, now) / WHOLE, (int64_t)most_level(bucket, now));
}

static struct vgpu_usage_flight *own_flight(const struct bucket *bucket)
{
	return &bucket->shared.flights[bucket->shared.slot];
}

static uint32_t units(uint64_t ns)
{
	return (uint32_t)((ns + VGPU_USAGE_TIME_UNIT - 1) / VGPU_USAGE_TIME_UNIT);
}

uint64_t bucket_in_flight(const struct bucket *bucket)
{
	return (uint64_t)LOAD(own_flight(bucket)->in_flight) * VGPU_USAGE_TIME_UNIT;
}

static void expect(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	uint64_t finish = most(LOAD(bucket->finish), now) + estimate;

	STORE(bucket->finish, finish); /* a race of threads makes a guess a little worse */
	STORE(bucket->shared.time->drains_at, is_known ? finish : finish + PATIENCE);
}

void bucket_force(struct bucket *bucket, uint64_t estimate, bool is_known, uint64_t now)
{
	__atomic_fetch_sub(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	if (!__atomic_fetch_add(&own_flight(bucket)->in_flight, units(estimate), __ATOMIC_RELAXED))
		STORE(bucket->shared.time->progress, now);
	expect(bucket, estimate, is_known, now);
}

static void land(struct bucket *bucket, uint64_t reserved)
{
	uint32_t *word = &own_flight(bucket)->in_flight;
	uint32_t in_flight = LOAD(*word);
	uint32_t less = units(reserved);

	while (!__atomic_compare_exchange_n(word, &in_flight, in_flight > less ? in_flight - less : 0, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		;
}

void bucket_release(struct bucket *bucket, uint64_t estimate)
{
	__atomic_fetch_add(&bucket->shared.time->level, (int64_t)estimate, __ATOMIC_RELAXED);
	land(bucket, estimate);
}

void bucket_book(struct bucket *bucket, uint64_t more, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_sub(&time->level, (int64_t)more, __ATOMIC_RELAXED);
	/* Who has the turn is at it still: it is not to be taken as long as the poller says so, within patience. */
	if (LOAD(time->holder) == bucket->shared.slot + 1 && now - LOAD(time->progress) < PATIENCE_HERE)
		STORE(time->drains_at, most(LOAD(time->drains_at), now + OVERDUE));
}

static bool is_turn_over(const struct bucket *bucket, uint64_t now);
static void hand_over(struct bucket *bucket);

void bucket_settle(struct bucket *bucket, uint64_t reserved, uint64_t booked, uint64_t used, uint64_t now)
{
	struct vgpu_usage_time *time = bucket->shared.time;

	__atomic_fetch_add(&time->level, (int64_t)booked - (int64_t)used, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->used, used, __ATOMIC_RELAXED);
	land(bucket, reserved);
	STORE(time->progress, now);
	uint64_t finish = now + bucket_in_flight(bucket);
	STORE(bucket->finish, finish);
	if (LOAD(time->holder) == bucket->shared.slot + 1) {
		STORE(time->drains_at, finish);
		if (finish == now && is_turn_over(bucket, now))
			hand_over(bucket);
	}
}

uint64_t bucket_uncounted(struct bucket *bucket, uint64_t from, uint64_t to)
{
	from = most(from, LOAD(bucket->counted_until));
	if (to <= from)
		return 0;
	STORE(bucket->counted_until, to);
	return to - from;
}

void bucket_count_back(struct bucket *bucket, uint64_t from, uint64_t to)
{
	(void)swap(&bucket->counted_until, from, to);
}

/* ---- phases ---- */

static uint64_t phase_length(const struct bucket *bucket, uint64_t now)
{
	return is_lent(bucket, now) ? LOAD(bucket->times.lent_length) : LOAD(bucket->times.phase_length);
}

/* The one that is or comes next. A lent one ends with the loan: then the container's own counts. */
static void compute_phase(struct bucket *bucket, uint64_t now)
{
	uint64_t period = LOAD(bucket->times.period), length = phase_length(bucket, now);
	uint64_t offset = (uint64_t)card_page_clock_offset();
	bool lent = is_lent(bucket, now);
	uint64_t start = lent ? LOAD(bucket->times.lent_start) : LOAD(bucket->times.phase_start);
	uint64_t until = lent ? LOAD(bucket->times.lent_until) - offset : UINT64_MAX;
	uint64_t into = (now + offset + period - start) % period;
	uint64_t begin = now - into + (into >= length ? period : 0);

	STORE(bucket->phase_begin, least(begin, until));
	STORE(bucket->phase_end, least(begin + length, until));
}

static bool has_phases(const struct bucket *bucket, uint64_t now)
{
	return LOAD(bucket->times.period) && (!is_lent(bucket, now) || LOAD(bucket->times.lent_length));
}

/* How much has to be there after the bucket was empty: fewer, longer sleeps. */
static uint64_t draught(const struct bucket *bucket, uint64_t now)
{
	return within(ration(bucket, now) / 8, NS_PER_MS / 4, 2 * NS_PER_MS);
}

/* A container that is behind its share goes on into the next phase for a while; so does the next one, then. */
static uint64_t last_end(const struct bucket *bucket)
{
	uint64_t end = LOAD(bucket->phase_end), length = end - LOAD(bucket->phase_begin);
	int64_t behind = LOAD(bucket->shared.time->level) - (int64_t)draught(bucket, end);

	return end + (behind > 0 ? least((uint64_t)behind, length / 4) : 0);
}

/* Work longer than a phase may begin in the first half of one; other work ends, on average, where the phase ends. */
static bool fits(const struct bucket *bucket, uint64_t estimate, uint64_t now)
{
	uint64_t begin = LOAD(bucket->phase_begin), end = LOAD(bucket->phase_end);
	uint64_t start = most(most(LOAD(bucket->finish), now), begin);

	if (estimate > end - begin)
		return start < begin + (end - begin) / 2;
	return start + estimate <= last_end(bucket) + estimate / 2;
}

static bool phase_is_open(struct bucket *bucket, uint64_t estimate, uint64_t now, uint64_t *again)
{
	if (!has_phases(bucket, now))
		return true;
	if (now >= last_end(bucket) || LOAD(bucket->phase_begin) > now + LOAD(bucket->times.period))
		compute_phase(bucket, now);
	uint64_t begin = LOAD(bucket->phase_begin), finish = LOAD(bucket->finish);
	if (now + LEAD < begin) {
		*again = begin - LEAD;
		return false;
	}
	if (fits(bucket, estimate, now))
		return true;
	/* What is under way may be done sooner than thought. */
	*again = finish > now ? now + most((finish - now) / 2, 50 * NS_PER_US)
			      : begin + LOAD(bucket->times.period) - LEAD;
	return false;
}

uint64_t bucket_outside(const struct bucket *bucket, uint64_t from, uint64_t to)
{
	uint64_t period = LOAD(bucket->times.period), length = phase_length(bucket, to);
	uint64_t begin = LOAD(bucket->phase_begin);

	if (!has_phases(bucket, to) || to <= from)
		return 0;
	/* ns of own phases before a time, counted from some phase's begin before both */
	uint64_t base = begin % period + from / period * period;
	while (base > from)
		base -= period;
	uint64_t before = least(from - base, length);
	uint64_t whole = (to - base) / period * length + least((to - base) % period, length);
	return to - from - (whole - before);
}

enum bucket_edge bucket_edge(struct bucket *bucket, uint64_t now)
{
	uint64_t begin = LOAD(bucket->phase_begin), length = LOAD(bucket->phase_end) - begin;

	if (!has_phases(bucket, now) || LOAD(bucket->times.tenants) == 1)
		return WITHIN_PHASE;
	if (LOAD(bucket->phase_worked) != begin) {
		STORE(bucket->phase_worked, begin);
		return FIRST_IN_PHASE;
	}
	return now < begin + least(3 * SLICE, length / 4) ? EARLY_IN_PHASE : WITHIN_PHASE;
}

/* ---- turns of the container's processes ---- */

static uint32_t waiting_time(uint64_t now)
{
	return (uint32_t)(now >> 10) | 1;
}

static bool has_waited_longer(const struct vgpu_usage_flight *flights, uint32_t one, uint32_t other)
{
	int32_t less = (int32_t)(LOAD(flights[other].waiting) - LOAD(flights[one].waiting));

	return less > 0 || (!less && one < other);
}

enum { NOBODY = -1 };

/* The slot, other than its own, that has waited longest. */
static int first_waiting(const struct bucket *bucket)
{
	const struct vgpu_usage_flight *flights = bucket->shared.flights;
	uint32_t slots = bucket->is_local ? 0 : usage_slots();
	int first = NOBODY;

	for (uint32_t i = 0; i < slots; i++)
		if (i != bucket->shared.slot && LOAD(flights[i].waiting) &&
		    (first == NOBODY || has_waited_longer(flights, i, (uint32_t)first)))
			first = (int)i;
	return first;
}

bool bucket_others_wait(const struct bucket *bucket)
{
	return first_waiting(bucket) != NOBODY;
}

/* Has another process waited longer than this one? One that does not wait has not waited. */
static bool is_behind(const struct bucket *bucket)
{
	int first = first_waiting(bucket);

	return first != NOBODY && (!LOAD(own_flight(bucket)->waiting) ||
				   has_waited_longer(bucket->shared.flights, (uint32_t)first, bucket->shared.slot));
}

/* Gives the turn up for whoever waits, and wakes the first of them. */
static void hand_over(struct bucket *bucket)
{
	int first = first_waiting(bucket);

	if (first != NOBODY && swap(&bucket->shared.time->holder, bucket->shared.slot + 1, 0))
		clock_wake(&bucket->shared.flights[first].waiting);
}

static bool is_turn_over(const struct bucket *bucket, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t since = LOAD(time->held_since);

	return LOAD(time->used) - LOAD(time->held_used) >= QUANTUM || now - since >= LONGEST_TURN;
}

static void begin_turn(struct bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->held_since, now);
	STORE(bucket->shared.time->held_used, LOAD(bucket->shared.time->used));
}

/* The holder goes on until its time is over and somebody waits; then it lets its work drain. */
static bool keep_turn(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	if (!is_turn_over(bucket, now))
		return true;
	if (first_waiting(bucket) == NOBODY) {
		begin_turn(bucket, now);
		return true;
	}
	if (!bucket_in_flight(bucket))
		hand_over(bucket);
	*again = most(LOAD(bucket->finish), now + LATE_LOOK);
	return false;
}

/* When the turn of another process may be taken. */
static uint64_t free_at(const struct bucket *bucket, uint64_t holder, uint64_t now)
{
	const struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t drains = LOAD(time->drains_at), progress = LOAD(time->progress);

	if (!holder || holder > VGPU_USAGE_SLOTS || (bucket->is_local && holder != 1))
		return now;
	bool is_over = is_turn_over(bucket, now);
	if (!LOAD(bucket->shared.flights[holder - 1].in_flight))
		return is_over || progress > now ? now : progress + GRACE;
	return drains + OVERDUE;
}

static bool take_turn(struct bucket *bucket, uint64_t holder, uint64_t now, uint64_t *again)
{
	struct vgpu_usage_time *time = bucket->shared.time;
	uint64_t from = free_at(bucket, holder, now);

	if (from > now) {
		STORE(bucket->free_seen, 0);
		*again = is_behind(bucket) ? now + LATE_LOOK : most(from, now + 50 * NS_PER_US);
		return false;
	}
	if (is_behind(bucket)) {
		if (!LOAD(bucket->free_seen))
			STORE(bucket->free_seen, now);
		*again = now + COURTESY;
		if (now - LOAD(bucket->free_seen) < COURTESY)
			return false;
	}
	STORE(bucket->free_seen, 0);
	if (!swap(&time->holder, holder, bucket->shared.slot + 1))
		return false;
	begin_turn(bucket, now);
	STORE(time->drains_at, now);
	STORE(bucket->fresh, 1);
	return true;
}

static bool has_turn(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return keep_turn(bucket, now, again);
	return take_turn(bucket, holder, now, again);
}

/* ---- may it begin? ---- */

/* A container with several cards runs on all of them together, lest kernels that wait for each other wait long. */
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

/* Who has the turn, or has waited longest when nobody has, asks first. */
static uint64_t modesty(const struct bucket *bucket, uint64_t now)
{
	uint64_t holder = LOAD(bucket->shared.time->holder);

	if (holder == bucket->shared.slot + 1)
		return 0;
	return (is_behind(bucket) ? LATE_LOOK : 0) + (holder && !is_turn_over(bucket, now) ? GRACE : 0);
}

static bool has_level(struct bucket *bucket, uint64_t now, uint64_t *again)
{
	int64_t level = LOAD(bucket->shared.time->level);
	int64_t wanted = LOAD(bucket->is_thirsty) ? (int64_t)draught(bucket, now) : 1;

	if (level >= wanted) {
		if (wanted != 1)
			STORE(bucket->is_thirsty, 0);
		return true;
	}
	if (level > -(int64_t)ration(bucket, now) && runs_elsewhere(bucket))
		return true;
	STORE(bucket->is_thirsty, 1);
	wanted = (int64_t)draught(bucket, now);
	*again = now + (uint64_t)(wanted - level) * WHOLE / rate(bucket, now) + modesty(bucket, now);
	return false;
}

static uint64_t run_ahead(const struct bucket *bucket, uint64_t now)
{
	if (has_phases(bucket, now)) {
		uint64_t end = last_end(bucket);
		return within(end > now ? (end - now) / 2 : 0, NS_PER_MS / 5, 4 * NS_PER_MS);
	}
	return within(ration(bucket, now) / 2, NS_PER_MS / 2, 10 * NS_PER_MS);
}

/*
 * What may be under way: enough to keep the card busy, little enough to stop soon. Two kernels at least, but of those
 * that nobody knows yet no more.
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
	if (!has_level(bucket, now, again) || !phase_is_open(bucket, estimate, now, again) ||
	    !has_room(bucket, estimate, is_known, now, again) || !has_turn(bucket, now, again))
		return false;
	bucket_force(bucket, estimate, is_known, now);
	return true;
}

/* ---- waiting, told to others ---- */

void bucket_wants(struct bucket *bucket, uint64_t now)
{
	STORE(bucket->shared.time->wanted, now);
}

uint32_t *bucket_waits(struct bucket *bucket, uint64_t now)
{
	uint32_t none = 0;

	STORE(bucket->shared.time->wanted, now);
	STORE(bucket->shared.time->waited, now);
	__atomic_compare_exchange_n(&own_flight(bucket)->waiting, &none, waiting_time(now), false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	return &own_flight(bucket)->waiting;
}

void bucket_waits_no_more(struct bucket *bucket)
{
	STORE(own_flight(bucket)->waiting, 0);
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

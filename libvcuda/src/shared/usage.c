/*
 * Implements shared/usage.h: the charges of the usage region and the queries over them. vgpu_usage.h describes the
 * protocol. The file's mapping is in shared/usage_region.c, the slots are in shared/usage_slots.c.
 */
#include "shared/usage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/log.h"
#include "base/process.h"
#include "shared/share_locks.h"
#include "shared/usage_region.h"
#include "shared/usage_slots.h"
#include "vgpu_usage.h"

enum {
	CONTENTION_TRIES = 200,
	REAP_EACH = 8, /* tries */
	LOOKUPS = 6, /* in which other threads and processes may make contexts all the time */
	CREATION_WAITS = 2000, /* milliseconds to wait for contexts whose size nobody knows yet */
};

int usage_card(const uint8_t uuid[16])
{
	bool absent;
	struct vgpu_usage *usage = usage_region_or_null(true, &absent);
	int card = usage ? usage_region_find_card(usage, uuid, true) : USAGE_NO_CARD;

	if (usage && card == USAGE_NO_CARD)
		log_once(LOG_ERROR, "%s: the container has more than %u cards; device memory is refused",
			 VGPU_USAGE_PATH, VGPU_LIMITS_MAX_CARDS);
	return card;
}

static uint64_t saturating_sum(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

struct totals {
	uint64_t attempting;
	uint64_t reserved;
	uint64_t overhead; /* the part of `reserved` that is overhead */
	unsigned int unaccounted; /* processes with unaccounted overhead */
	unsigned int creating;    /* processes that make a context, see usage_set_creating */
};

#define CREATING(card) ((uint64_t)1 << (VGPU_USAGE_CREATING_SHIFT + (card)))

static struct totals sum_charges(struct vgpu_usage *usage, int card)
{
	struct totals totals = {0, 0, 0, 0, 0};
	uint32_t seen = usage_slots_seen(usage);

	for (uint32_t i = 0; i < seen; i++) {
		const struct vgpu_usage_charge *charge = &usage->charges[card][i];
		/* `attempting` first. */
		totals.attempting = saturating_sum(totals.attempting, usage_region_load(&charge->attempting));
		totals.reserved = saturating_sum(totals.reserved, usage_region_load(&charge->reserved));
		totals.overhead =
			saturating_sum(totals.overhead, usage_region_load_overhead(&usage->overheads[card][i]));
		uint64_t marks = usage_region_load(&usage->slots[i].unaccounted);
		totals.unaccounted += marks >> card & 1;
		totals.creating += (marks & CREATING(card)) != 0;
	}
	totals.reserved = saturating_sum(totals.reserved, share_locks_orphans(card, false));
	return totals;
}

/*
 * The overhead that no process has booked: the larger of `unaccounted_bytes` and what the host's figure has beyond all
 * bookings. `unaccounted_bytes` UINT64_MAX means that no lookup was made, and stands for the most that the overhead can
 * be.
 */
static uint64_t unbooked(const struct totals *totals, uint64_t unaccounted_bytes, uint64_t overhead)
{
	uint64_t hosts = overhead > totals->overhead ? overhead - totals->overhead : 0;

	if (unaccounted_bytes == UINT64_MAX)
		unaccounted_bytes = totals->unaccounted * VGPU_USAGE_UNACCOUNTED_MOST;
	return unaccounted_bytes > hosts ? unaccounted_bytes : hosts;
}

enum verdict { GRANTED, FULL, FULL_FOR_NOW, CONTENDED, UNACCOUNTED };

/* What a lookup found: the unaccounted overhead of so many processes. */
struct looked_up {
	uint64_t bytes; /* UINT64_MAX: no lookup was made */
	unsigned int processes;
	uint64_t markings; /* the region's, before the lookup */
};

/* A process that makes the container's first context has booked all that is left until it knows the context's size. */
static bool is_created_by_another(const struct vgpu_usage *usage, int card, int slot, const struct totals *totals)
{
	uint64_t own = usage_region_load(&usage->slots[slot].unaccounted) & CREATING(card);

	return totals->creating > (own != 0);
}

/* For what a process marks after the lookup, there was none. Older processes do not count `markings`. */
static bool is_looked_up(const struct vgpu_usage *usage, const struct totals *totals, const struct looked_up *found)
{
	return found->bytes != UINT64_MAX && totals->unaccounted <= found->processes &&
	       (found->processes == UINT32_MAX || usage_region_load(&usage->markings) == found->markings);
}

/*
 * There is no room. What other processes have booked for contexts in the making may become room: a further context of a
 * process may take nothing.
 */
static enum verdict full(const struct vgpu_usage *usage, int card, int slot, uint64_t beyond_limit)
{
	uint64_t expected = 0;

	for (uint32_t i = 0; i < usage_slots_seen(usage); i++)
		if ((int)i != slot && usage_region_is_expected(&usage->overheads[card][i]))
			expected += usage_context_size(card);
	return beyond_limit > expected ? FULL : FULL_FOR_NOW;
}

static enum verdict attempt(struct vgpu_usage *usage, int card, int slot, uint64_t size, struct usage_limit limit,
			    const struct looked_up *found)
{
	struct vgpu_usage_charge *charge = &usage->charges[card][slot];

	usage_region_add(&charge->attempting, size);
	struct totals totals = sum_charges(usage, card);
	bool is_known = is_looked_up(usage, &totals, found);
	uint64_t held = saturating_sum(totals.reserved,
				       unbooked(&totals, is_known ? found->bytes : UINT64_MAX, limit.overhead));
	bool fits = saturating_sum(held, totals.attempting) <= limit.memory;
	if (fits)
		usage_region_add(&charge->reserved, size);
	usage_region_add(&charge->attempting, -size);
	if (fits)
		return GRANTED;
	if (is_created_by_another(usage, card, slot, &totals) && saturating_sum(held, size) > limit.memory)
		return FULL_FOR_NOW;
	if (saturating_sum(totals.reserved, size) > limit.memory)
		return full(usage, card, slot, saturating_sum(totals.reserved, size) - limit.memory);
	if (!is_known && totals.unaccounted)
		return UNACCOUNTED;
	if (saturating_sum(held, size) > limit.memory)
		return full(usage, card, slot, saturating_sum(held, size) - limit.memory);
	return CONTENDED;
}

static uint64_t (*_Atomic lookup)(int card, const uint8_t uuid[16]);

void usage_set_lookup(uint64_t (*asked)(int card, const uint8_t uuid[16]))
{
	atomic_store(&lookup, asked);
}

static uint64_t ask_lookup(struct vgpu_usage *usage, int card)
{
	uint64_t (*asked)(int card, const uint8_t uuid[16]) = atomic_load(&lookup);

	(void)usage_slots_enter(usage); /* a lookup is no part of a call */
	uint64_t bytes = asked ? asked(card, usage->cards[card].uuid) : 0;
	usage_slots_leave();
	return bytes;
}

/* Of two processes that collide, both withdraw. Each tries again after a random time, so that one of them succeeds. */
static void back_off(int slot, int try)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t mixed = ((uint64_t)now.tv_nsec + (uint64_t)slot * 7919) * 0x9e3779b97f4a7c15u >> 40;
	const struct timespec pause = {.tv_nsec = (long)(mixed % (uint64_t)(try < 10 ? 20000 : 100000))};
	nanosleep(&pause, NULL);
}

/* A process that was killed meanwhile makes no context any more. */
static void back_off_for_creation(struct vgpu_usage *usage, int waits)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	if (waits % 32 == 0)
		usage_slots_reap(usage, ANY_CARD, THOROUGH);
	nanosleep(&pause, NULL);
}

/* What the marked processes have not booked of a context each. */
static uint64_t missing_contexts(const struct vgpu_usage *usage, int card, uint64_t context)
{
	uint64_t missing = 0;

	for (uint32_t i = 0; i < usage_slots_seen(usage); i++) {
		uint64_t overhead = usage_region_load_overhead(&usage->overheads[card][i]);
		if (usage_region_load(&usage->slots[i].unaccounted) >> card & 1 && context > overhead)
			missing = saturating_sum(missing, context - overhead);
	}
	return missing;
}

/*
 * Contexts were made during each lookup, so none counts. The last one then counts as it is, and what each marked process
 * lacks of a context, and one more context: rather too much is counted than that a call looks for ever.
 */
static void add_marked(const struct vgpu_usage *usage, int card, struct looked_up *found)
{
	uint64_t size = usage_context_size(card);

	found->bytes += size ? missing_contexts(usage, card, size) + size
			     : ((uint64_t)found->processes + 1) * VGPU_USAGE_UNACCOUNTED_MOST;
	found->processes = UINT32_MAX;
}

/*
 * FULL counts only if it is found again after dead processes were reaped. The words of many slots are not read at one
 * instant: a single pass may count one process's bytes before it releases them and another's after it reserved them.
 */
static bool reserve(struct vgpu_usage *usage, int card, int slot, uint64_t size, struct usage_limit limit,
		    const struct looked_up given)
{
	struct looked_up found = given;
	bool reaped = false;
	int lookups = 0;
	int waits = given.bytes == UINT64_MAX ? 0 : CREATION_WAITS; /* the context that is booked now exists already */

	for (int try = 0; try < CONTENTION_TRIES; try++) {
		enum verdict verdict = attempt(usage, card, slot, size, limit, &found);
		while (verdict == FULL_FOR_NOW && waits++ < CREATION_WAITS) {
			back_off_for_creation(usage, waits);
			verdict = attempt(usage, card, slot, size, limit, &found);
		}
		if (verdict == GRANTED)
			return true;
		if (verdict == UNACCOUNTED) {
			found.markings = usage_region_load(&usage->markings);
			found.processes = sum_charges(usage, card).unaccounted;
			found.bytes = ask_lookup(usage, card);
			if (++lookups > LOOKUPS)
				add_marked(usage, card, &found);
			continue;
		}
		if (verdict == FULL || verdict == FULL_FOR_NOW) {
			if (reaped)
				return false;
			usage_slots_reap(usage, ANY_CARD, THOROUGH);
			(void)share_locks_orphans(card, true);
			reaped = true;
			found = given; /* dead processes may have been in the lookup's sum */
			continue;
		}
		if (try % REAP_EACH == REAP_EACH / 2) /* a process killed during an attempt never withdraws it */
			usage_slots_reap(usage, ANY_CARD, THOROUGH);
		back_off(slot, try);
	}
	return false;
}

static bool reserve_in(struct vgpu_usage *usage, int card, int slot, uint64_t size, struct usage_limit limit)
{
	return slot != NO_SLOT && size <= limit.memory &&
	       reserve(usage, card, slot, size, limit, (struct looked_up){UINT64_MAX, 0, 0});
}

bool usage_reserve_in_call(int card, uint64_t size, struct usage_limit limit)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	return reserve_in(usage, card, usage_slots_in_call(usage), size, limit);
}

bool usage_reserve(int card, uint64_t size, struct usage_limit limit)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	bool granted = reserve_in(usage, card, usage_slots_enter(usage), size, limit);
	usage_slots_leave();
	return granted;
}

bool usage_reserve_overhead(int card, uint64_t size, struct usage_limit limit, uint64_t others)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_enter(usage);

	limit.overhead = 0; /* the host's figure includes this process's overhead */
	bool granted =
		slot != NO_SLOT && reserve(usage, card, slot, size, limit, (struct looked_up){others, UINT32_MAX, 0});
	usage_slots_leave();
	return granted;
}

void usage_set_overhead(int card, uint64_t bytes, bool is_expected)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_enter(usage);

	if (slot != NO_SLOT)
		usage_region_store_overhead(&usage->overheads[card][slot], bytes, is_expected);
	usage_slots_leave();
}

void usage_set_unlisted(int card, uint64_t bytes)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_current();

	if (slot != NO_SLOT)
		usage_region_store_unlisted(&usage->unlisted[card][slot], bytes);
}

void usage_saw_overhead(int card, uint64_t bytes)
{
	uint64_t *context = &((struct vgpu_usage *)atomic_load(&usage_region))->cards[card].context;
	uint64_t seen = usage_region_load(context);

	while (bytes && (!seen || bytes < seen) && !usage_region_swap(context, seen, bytes))
		seen = usage_region_load(context);
}

bool usage_force(int card, uint64_t size)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_enter(usage);

	if (slot != NO_SLOT)
		usage_region_add(&usage->charges[card][slot].reserved, size);
	usage_slots_leave();
	return slot != NO_SLOT;
}

void usage_set_unaccounted(int card, bool unaccounted)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = unaccounted ? usage_slots_enter(usage) : usage_slots_current();

	if (slot != NO_SLOT && unaccounted) {
		__atomic_fetch_or(&usage->slots[slot].unaccounted, (uint64_t)1 << card, __ATOMIC_SEQ_CST);
		usage_region_add(&usage->markings, 1);
	} else if (slot != NO_SLOT) {
		__atomic_fetch_and(&usage->slots[slot].unaccounted, ~((uint64_t)1 << card), __ATOMIC_SEQ_CST);
	}
	if (unaccounted)
		usage_slots_leave();
}

bool usage_has_room(int card, struct usage_limit limit)
{
	struct totals totals = sum_charges(atomic_load(&usage_region), card);
	uint64_t held = saturating_sum(totals.reserved, unbooked(&totals, UINT64_MAX, limit.overhead));

	return saturating_sum(held, totals.attempting) <= limit.memory;
}

bool usage_overhead_exceeds(int card, struct usage_limit limit, uint64_t allowed)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	struct totals totals = sum_charges(usage, card);
	uint64_t most = saturating_sum(limit.memory, allowed);
	uint64_t missing = totals.unaccounted * VGPU_USAGE_UNACCOUNTED_MOST;

	if (saturating_sum(totals.reserved, missing) <= most)
		return false;
	if (missing) {
		missing = ask_lookup(usage, card);
		totals = sum_charges(usage, card);
	}
	uint64_t held = saturating_sum(totals.reserved, missing);
	return held > most && held - limit.memory <= saturating_sum(totals.overhead, missing);
}

unsigned int usage_unaccounted_count(int card)
{
	return sum_charges(atomic_load(&usage_region), card).unaccounted;
}

void usage_set_creating(int card, bool creating)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = creating ? usage_slots_enter(usage) : usage_slots_current();

	if (slot != NO_SLOT && creating)
		__atomic_fetch_or(&usage->slots[slot].unaccounted, CREATING(card), __ATOMIC_SEQ_CST);
	else if (slot != NO_SLOT)
		__atomic_fetch_and(&usage->slots[slot].unaccounted, ~CREATING(card), __ATOMIC_SEQ_CST);
	if (creating)
		usage_slots_leave();
}

uint64_t usage_context_size(int card)
{
	return usage_region_load(&((struct vgpu_usage *)atomic_load(&usage_region))->cards[card].context);
}

uint64_t usage_left(int card, struct usage_limit limit)
{
	uint64_t held = sum_charges(atomic_load(&usage_region), card).reserved;

	return held < limit.memory ? limit.memory - held : 0;
}

uint64_t usage_own(int card)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_current();

	return slot == NO_SLOT ? 0 : usage_region_load(&usage->charges[card][slot].reserved);
}

void usage_managed(int64_t change)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_current();

	if (slot != NO_SLOT)
		usage_region_add(&usage->slots[slot].managed, (uint64_t)change);
}

void usage_release(int card, uint64_t size)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_current();

	if (slot != NO_SLOT)
		usage_region_add(&usage->charges[card][slot].reserved, -size);
}

bool usage_time(const uint8_t uuid[16], struct usage_time *place)
{
	int card = usage_card(uuid);
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (card == USAGE_NO_CARD)
		return false;
	int slot = usage_slots_enter(usage);
	usage_slots_leave();
	if (slot == NO_SLOT)
		return false;
	usage_slots_begin_time(usage, card, (uint32_t)slot);
	*place = (struct usage_time){&usage->times[card], &usage->slice, usage->flights[card], (uint32_t)slot};
	return true;
}

void usage_waited(struct vgpu_usage_time *time, uint64_t ns)
{
	static const uint64_t below[VGPU_USAGE_WAITS - 1] = {1000000, 10000000, 100000000, 1000000000};
	unsigned int range = 0;

	while (range < VGPU_USAGE_WAITS - 1 && ns >= below[range])
		range++;
	__atomic_fetch_add(&time->throttled, ns, __ATOMIC_RELAXED);
	__atomic_fetch_add(&time->waits[range], 1, __ATOMIC_RELAXED);
}

void usage_refused(int card)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (usage && card != USAGE_NO_CARD)
		__atomic_fetch_add(&usage->times[card].refusals, 1, __ATOMIC_RELAXED);
}

static uint64_t chunk_of(uint64_t marks)
{
	uint64_t found = marks >> VGPU_USAGE_CHUNK_SHIFT & UINT8_MAX;

	return found && found <= 64 ? (uint64_t)1 << (found - 1) : UINT64_MAX;
}

uint64_t usage_pool_chunk(uint64_t most)
{
	const struct vgpu_usage *usage = atomic_load(&usage_region);
	uint64_t found = usage ? chunk_of(usage_region_load(&usage->marks)) : most;

	return found < most ? found : most;
}

uint64_t usage_pool_chunk_found(uint64_t bytes)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	uint64_t marks = usage ? usage_region_load(&usage->marks) : 0, rest, found;

	do {
		rest = marks & ~((uint64_t)UINT8_MAX << VGPU_USAGE_CHUNK_SHIFT);
		found = (uint64_t)__builtin_ctzll(bytes) + 1;
	} while (usage && bytes < chunk_of(marks) &&
		 !__atomic_compare_exchange_n(&usage->marks, &marks, rest | found << VGPU_USAGE_CHUNK_SHIFT, false,
					      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return usage_pool_chunk(bytes);
}

bool usage_pool_chunk_try(void)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	return usage &&
	       !(__atomic_fetch_or(&usage->marks, VGPU_USAGE_CHUNK_TRIED, __ATOMIC_RELAXED) & VGPU_USAGE_CHUNK_TRIED);
}

void usage_pool_chunk_tried(bool again)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (usage && again)
		__atomic_fetch_and(&usage->marks, ~VGPU_USAGE_CHUNK_TRIED, __ATOMIC_RELAXED);
}

static void mark(uint64_t mark, bool is_set)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (!usage || !(__atomic_load_n(&usage->marks, __ATOMIC_RELAXED) & mark) == !is_set)
		return;
	if (is_set)
		__atomic_fetch_or(&usage->marks, mark, __ATOMIC_RELAXED);
	else
		__atomic_fetch_and(&usage->marks, ~mark, __ATOMIC_RELAXED);
}

void usage_locks_refused(void)
{
	mark(VGPU_USAGE_LOCKS_REFUSED, true);
}

void usage_waits_refused(void)
{
	mark(VGPU_USAGE_WAITS_REFUSED, true);
}

void usage_locks_slow(bool are_slow)
{
	mark(VGPU_USAGE_LOCKS_SLOW, are_slow);
}

void usage_change_measured(const struct vgpu_usage_time *time, uint64_t ns)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (usage && time >= usage->times && time < usage->times + VGPU_LIMITS_MAX_CARDS)
		__atomic_store_n(&usage->change, ns << VGPU_USAGE_CHANGE_SHIFT | (uint64_t)(time - usage->times),
				 __ATOMIC_RELAXED);
}

uint32_t usage_slot_count(void)
{
	const struct vgpu_usage *usage = atomic_load(&usage_region);

	return usage ? usage_slots_seen(usage) : 0;
}

struct vgpu_usage_time *usage_time_at(int index, const struct vgpu_usage_flight **flights)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (!usage || index >= (int)VGPU_LIMITS_MAX_CARDS || !usage_region_load(&usage->cards[index].key))
		return NULL;
	*flights = usage->flights[index];
	return &usage->times[index];
}

void usage_reap(void)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (usage)
		usage_slots_reap(usage, ANY_CARD, THOROUGH);
}

bool usage_held(const uint8_t uuid[16], uint64_t unbooked_bytes, uint64_t overhead, uint64_t *held)
{
	bool absent;
	struct vgpu_usage *usage = usage_region_or_null(false, &absent);

	*held = 0;
	if (!usage)
		return absent;
	int card = usage_region_find_card(usage, uuid, false);
	if (card == USAGE_NO_CARD)
		return true;
	usage_slots_reap_for_query(usage, card);
	(void)share_locks_orphans(card, true);
	struct totals totals = sum_charges(usage, card);
	*held = saturating_sum(totals.reserved, unbooked(&totals, unbooked_bytes, overhead));
	return true;
}

static uint64_t own_namespaces(void)
{
	pthread_mutex_lock(&usage_slots_lock);
	const uint64_t namespaces = usage_slots_identity()->namespaces;
	pthread_mutex_unlock(&usage_slots_lock);
	return namespaces;
}

uint64_t usage_foreign_unaccounted(int card)
{
	const struct vgpu_usage *usage = atomic_load(&usage_region);
	const uint64_t namespaces = own_namespaces(), context = usage_context_size(card);
	uint64_t missing = 0;

	for (uint32_t i = 0; i < usage_slots_seen(usage); i++) {
		const struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t overhead = usage_region_load_overhead(&usage->overheads[card][i]);
		if (usage_region_load(&slot->owner) && usage_region_load(&slot->namespaces) != namespaces &&
		    usage_region_load(&slot->unaccounted) >> card & 1 && context > overhead)
			missing = saturating_sum(missing, context - overhead);
	}
	return missing;
}

unsigned int usage_processes(const uint8_t uuid[16], struct usage_process *list, unsigned int room)
{
	bool absent;
	struct vgpu_usage *usage = usage_region_or_null(false, &absent);
	int card = usage ? usage_region_find_card(usage, uuid, false) : USAGE_NO_CARD;
	unsigned int count = 0;

	if (card == USAGE_NO_CARD)
		return 0;
	usage_slots_reap_for_query(usage, card);
	const uint64_t namespaces = own_namespaces();
	for (uint32_t i = 0; i < usage_slots_seen(usage); i++) {
		const struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = usage_region_load(&slot->owner);
		uint64_t held = usage_region_load(&usage->charges[card][i].reserved);
		uint64_t marks = usage_region_load(&slot->unaccounted);
		bool unaccounted = marks >> card & 1;
		if (!owner || owner & VGPU_USAGE_REAPING || !(held || unaccounted) ||
		    usage_region_load(&slot->namespaces) != namespaces)
			continue;
		if (count < room)
			list[count] = (struct usage_process){owner & (((uint64_t)1 << VGPU_USAGE_PID_BITS) - 1),
							     held,
							     usage_region_load_overhead(&usage->overheads[card][i]),
							     usage_region_load_unlisted(&usage->unlisted[card][i]),
							     unaccounted,
							     marks & CREATING(card)};
		count++;
	}
	return count;
}

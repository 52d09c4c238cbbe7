/*
 * Implements shared/usage_slots.h; vgpu_usage.h describes the protocol. A process claims a slot by writing its identity
 * into it, and any process may reap the slot of a dead one. A forked child starts without a slot.
 */
#include "shared/usage_slots.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "shared/slot_lock.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum {
	QUERY_INTERVAL = 100, /* milliseconds between thorough looks for dead processes in queries */
	CROWD = 32,    /* new slots after which a claim looks for dead processes */
};

pthread_mutex_t usage_slots_lock = PTHREAD_MUTEX_INITIALIZER;

/* The state of this process that a child must not take for its own. */
struct own {
	_Atomic uint64_t slot;          /* pid << 32 | index + 1; 0: none */
	struct process_identity self;   /* protected by the lock; owner 0: not determined yet */
	_Atomic uint32_t timed;         /* a bit per place of a card whose time this process is charged for */
};

static struct own first_own;
static struct own *own = &first_own; /* see usage_slots_watch_forks */
static bool wiped_on_fork;
static atomic_int reserving;
atomic_uint usage_calls;
static atomic_bool leaving;

/* In a forked child no thread holds the lock. The child has charged nothing and has no slot. */
static void usage_slots_after_fork(void)
{
	pthread_mutex_init(&usage_slots_lock, NULL);
	atomic_store(&own->slot, 0);
	own->self.owner = 0;
	atomic_store(&own->timed, 0);
	atomic_store(&reserving, 0);
}

/*
 * A child of a bare clone() runs no atfork handlers. `own` therefore lies on a page that the kernel clears in the child
 * (Linux 4.14). On older kernels the pid in the upper half of `slot` detects a child, for one system call each time.
 */
void usage_slots_watch_forks(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	pthread_atfork(NULL, NULL, usage_slots_after_fork);
	if (page == MAP_FAILED)
		return;
	wiped_on_fork = madvise(page, size, MADV_WIPEONFORK) == 0;
	own = page;
	atomic_store(&own->slot, 0); /* a write before the first read costs one page fault instead of two */
}

static void see_slot(struct vgpu_usage *usage, uint32_t index)
{
	uint64_t seen = usage_region_load(&usage->slots_seen);

	while (seen <= index && !usage_region_swap(&usage->slots_seen, seen, index + 1))
		seen = usage_region_load(&usage->slots_seen);
}

static void zero_charges(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; usage_slots_has_card(usage, card); card++) {
		usage_region_store(&usage->charges[card][index].attempting, 0);
		usage_region_store(&usage->charges[card][index].reserved, 0);
		usage_region_store_overhead(&usage->overheads[card][index], 0, false);
		usage_region_store_unlisted(&usage->unlisted[card][index], 0);
	}
	usage_region_store(&usage->slots[index].unaccounted, 0);
}

/* Returns what the slot has reserved for work under way: no process can find out how much of it was used. */
static void give_back_time(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; usage_slots_has_card(usage, card); card++) {
		struct vgpu_usage_flight *flight = &usage->flights[card][index];
		uint32_t in_flight = __atomic_exchange_n(&flight->in_flight, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&flight->waiting, 0, __ATOMIC_SEQ_CST);
		if (in_flight)
			__atomic_fetch_add(&usage->times[card].level, (int64_t)in_flight * VGPU_USAGE_TIME_UNIT,
					   __ATOMIC_SEQ_CST);
		(void)usage_region_swap(&usage->times[card].holder, index + 1, 0);
	}
}

static void empty_slot(struct vgpu_usage *usage, uint32_t index)
{
	usage_region_store(&usage->slots[index].image, 0);
	usage_region_store(&usage->slots[index].namespaces, 0);
	usage_region_store(&usage->slots[index].managed, 0);
	usage_region_store(&usage->slots[index].owner, 0);
}

/* Called only by the process that the slot's `owner` names. A reaper puts its own identity there first. */
static void free_slot(struct vgpu_usage *usage, uint32_t index)
{
	if (usage_region_load(&usage->share_changes)) /* what it exported may have to count as others' imports now */
		usage_region_add(&usage->share_changes, 1);
	zero_charges(usage, index);
	give_back_time(usage, index);
	empty_slot(usage, index);
}

/* Whether the slot names this process. Another one may have the same pid in its namespace, and the same start time. */
static bool is_own(const struct process_identity *self, const struct vgpu_usage_slot *slot)
{
	return (usage_region_load(&slot->owner) & ~VGPU_USAGE_REAPING) == self->owner &&
	       usage_region_load(&slot->namespaces) == self->namespaces;
}

/* Whether this process charged its slot before an exec: the image is another. */
static bool before_exec(const struct process_identity *self, const struct vgpu_usage_slot *slot)
{
	uint64_t image = usage_region_load(&slot->image);

	return usage_region_load(&slot->owner) == self->owner && image && (image | VGPU_USAGE_UNLOCKED) != self->image;
}

static bool lock_was_left(const struct vgpu_usage *usage, uint32_t index)
{
	uint64_t image = usage_region_load(&usage->slots[index].image);

	return image && !(image & VGPU_USAGE_UNLOCKED) && slot_lock_is_free(index);
}

static bool owner_is_dead(const struct vgpu_usage *usage, uint32_t index, const struct process_identity *self,
			  uint64_t owner, enum look look)
{
	bool by_pid = process_is_judged_by_pid(self, usage_region_load(&usage->slots[index].namespaces));

	if (by_pid && process_is_dead(self, owner, look))
		return true;
	return (!by_pid || !process_knows_start(self)) && lock_was_left(usage, index);
}

/*
 * Takes a dead process's slot over. Processes of other namespaces may have the same identity as its owner, so that the
 * slot may be another's by now, whose lock is held.
 */
static bool take_over(struct vgpu_usage *usage, uint32_t index, const struct process_identity *self, uint64_t owner)
{
	struct vgpu_usage_slot *slot = &usage->slots[index];

	if (!usage_region_swap(&slot->owner, owner, self->owner | VGPU_USAGE_REAPING))
		return false;
	if (process_is_judged_by_pid(self, usage_region_load(&slot->namespaces)) || lock_was_left(usage, index))
		return true;
	(void)usage_region_swap(&slot->owner, self->owner | VGPU_USAGE_REAPING, owner);
	return false;
}

/* Called with the lock held. */
const struct process_identity *usage_slots_identity(void)
{
	if (!own->self.owner || !wiped_on_fork)
		process_identify(&own->self);
	return &own->self;
}

static bool holds_something(const struct vgpu_usage *usage, uint32_t index, int card)
{
	const struct vgpu_usage_charge *charge = &usage->charges[card][index];

	return usage_region_load(&charge->reserved) || usage_region_load(&charge->attempting) ||
	       usage_region_load(&usage->slots[index].unaccounted) >> card & 1 ||
	       __atomic_load_n(&usage->flights[card][index].in_flight, __ATOMIC_SEQ_CST);
}

/*
 * Frees the slots of dead processes that hold something of the card (see ANY_CARD and OWN_ONLY) and returns their
 * number. Looking at another process costs system calls. Called with the lock held.
 */
static int reap(struct vgpu_usage *usage, const struct process_identity *self, int card, enum look look)
{
	int freed = 0;

	for (uint32_t i = 0; i < usage_slots_seen(usage); i++) {
		struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = usage_region_load(&slot->owner);
		if (!owner)
			continue;
		if (is_own(self, slot)) {
			if (!before_exec(self, slot))
				continue;
		} else if (card == OWN_ONLY || (card != ANY_CARD && !holds_something(usage, i, card)) ||
			   !owner_is_dead(usage, i, self, owner, look)) {
			continue;
		}
		if (!take_over(usage, i, self, owner))
			continue;
		free_slot(usage, i);
		freed++;
	}
	return freed;
}

void usage_slots_reap(struct vgpu_usage *usage, int card, enum look look)
{
	pthread_mutex_lock(&usage_slots_lock);
	reap(usage, usage_slots_identity(), card, look);
	pthread_mutex_unlock(&usage_slots_lock);
}

/*
 * A process that is gone is found at once, a zombie or a reused pid within TELLING milliseconds. An allocation that
 * would be refused looks for those at once too.
 */
void usage_slots_reap_for_query(struct vgpu_usage *usage, int card)
{
	static _Atomic int64_t next;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	int64_t milliseconds = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
	bool thorough = milliseconds >= atomic_load(&next);
	if (thorough)
		atomic_store(&next, milliseconds + QUERY_INTERVAL);
	usage_slots_reap(usage, card, thorough ? THOROUGH : PASSING);
}

static int claim_free(struct vgpu_usage *usage, const struct process_identity *self)
{
	for (uint32_t i = 0; i < VGPU_USAGE_SLOTS; i++) {
		struct vgpu_usage_slot *slot = &usage->slots[i];
		if (usage_region_load(&slot->owner))
			continue;
		see_slot(usage, i); /* before the claim: a sum over the slots must not stop before a charged one */
		if (!usage_region_swap(&slot->owner, 0, self->owner))
			continue;
		usage_region_store(&slot->namespaces, self->namespaces);
		usage_region_store(&slot->image, self->image);
		if (usage_region_load(&slot->owner) != self->owner)
			continue; /* a process of another namespace took the half-written slot for a dead one's */
		if (slot_lock_take(i))
			usage_region_store(&slot->image, self->image & ~VGPU_USAGE_UNLOCKED);
		return (int)i;
	}
	return NO_SLOT;
}

/* All slots used so far are taken, and CROWD more are in use than when dead processes were last looked for. */
static bool crowded(const struct vgpu_usage *usage)
{
	uint32_t seen = usage_slots_seen(usage);

	if (!seen || seen % CROWD)
		return false;
	for (uint32_t i = 0; i < seen; i++)
		if (!usage_region_load(&usage->slots[i].owner))
			return false;
	return true;
}

static int claim_slot(struct vgpu_usage *usage)
{
	const struct process_identity *self = usage_slots_identity();

	reap(usage, self, OWN_ONLY, PASSING);
	if (crowded(usage)) /* processes that died without a charge are found by no other search */
		reap(usage, self, ANY_CARD, PASSING);
	int index = claim_free(usage, self);
	if (index == NO_SLOT && reap(usage, self, ANY_CARD, THOROUGH))
		index = claim_free(usage, self);
	if (index == NO_SLOT)
		log_once(LOG_ERROR, "%s: %u processes hold device memory, the most possible; device memory is refused",
			 VGPU_USAGE_PATH, VGPU_USAGE_SLOTS);
	return index;
}

int usage_slots_current(void)
{
	uint64_t word = atomic_load(&own->slot);

	if (!wiped_on_fork && word >> 32 != (uint64_t)getpid())
		return NO_SLOT;
	return (int)(word & UINT32_MAX) - 1; /* NO_SLOT for 0 */
}

static int slot_or_claim(struct vgpu_usage *usage)
{
	int index = usage_slots_current();

	if (index != NO_SLOT)
		return index;
	pthread_mutex_lock(&usage_slots_lock);
	index = usage_slots_current();
	if (index == NO_SLOT) {
		index = claim_slot(usage);
		if (index != NO_SLOT)
			atomic_store(&own->slot, (uint64_t)getpid() << 32 | (uint32_t)(index + 1));
	}
	pthread_mutex_unlock(&usage_slots_lock);
	return index;
}

int usage_slots_enter(struct vgpu_usage *usage)
{
	atomic_fetch_add(&reserving, 1);
	return usage_slots_in_call(usage);
}

int usage_slots_in_call(struct vgpu_usage *usage)
{
	return atomic_load(&leaving) ? NO_SLOT : slot_or_claim(usage);
}

void usage_slots_begin_time(struct vgpu_usage *usage, int card, uint32_t slot)
{
	struct vgpu_usage_flight *flight = &usage->flights[card][slot];
	uint32_t bit = (uint32_t)1 << card;

	if (atomic_fetch_or(&own->timed, bit) & bit)
		return;
	__atomic_store_n(&flight->in_flight, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&flight->waiting, 0, __ATOMIC_SEQ_CST);
}

void usage_slots_leave(void)
{
	atomic_fetch_sub(&reserving, 1);
}

/*
 * At exit the driver still holds memory that the program did not free. A slot with charges, or with overhead that nobody
 * has booked, therefore stays, and another process reaps it once this one is gone. An empty slot is freed now. The
 * library is linked nodelete, so that this runs at exit and never in a dlclose.
 *
 * The lock ends before another process may claim the slot, which would be refused it otherwise. Without an image nobody
 * takes a lock that is free for a dead process's.
 */
__attribute__((destructor)) static void leave_at_exit(void)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	int slot = usage_slots_current();
	uint64_t charged;

	atomic_store(&leaving, true);
	if (!usage || slot == NO_SLOT || atomic_load(&reserving) || atomic_load(&usage_calls))
		return;
	charged = usage_region_load(&usage->slots[slot].unaccounted);
	for (uint32_t card = 0; usage_slots_has_card(usage, card); card++)
		charged |= usage_region_load(&usage->charges[card][slot].attempting) |
			   usage_region_load(&usage->charges[card][slot].reserved);
	if (charged)
		return;
	zero_charges(usage, (uint32_t)slot);
	if (atomic_load(&own->timed)) /* else this process never wrote the words: saves two page faults */
		give_back_time(usage, (uint32_t)slot);
	usage_region_store(&usage->slots[slot].image, 0);
	slot_lock_drop();
	empty_slot(usage, (uint32_t)slot);
}

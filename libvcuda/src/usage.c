/* See usage.h for what this gives and vgpu_usage.h for the layout and the protocol. */
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "process.h"
#include "vgpu_usage.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum {
	CONTENTION_TRIES = 200,
	REAP_EACH = 8, /* tries */
	TELLING = 100, /* milliseconds */
	CROWD = 32,    /* slots */
	NO_SLOT = -1,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* this process's threads: opening, claiming, reaping */
static struct vgpu_usage *_Atomic region;

/* What a child of this process must not take for its own. */
struct own {
	_Atomic uint64_t slot;          /* pid << 32 | index + 1; 0: none */
	struct process_identity self;   /* under the lock; owner 0: not asked for yet */
	_Atomic uint32_t timed;         /* a bit per place of a card whose time this process asked for */
};

static struct own first_own;
static struct own *own = &first_own; /* see watch_forks */
static bool wiped_on_fork;
static atomic_int reserving;
static atomic_bool leaving;

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void store(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static bool swap(uint64_t *word, uint64_t expected, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void add(uint64_t *word, uint64_t value)
{
	__atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static uint64_t load_overhead(const uint32_t *word)
{
	return (uint64_t)__atomic_load_n(word, __ATOMIC_SEQ_CST) * VGPU_USAGE_OVERHEAD_UNIT;
}

static void store_overhead(uint32_t *word, uint64_t bytes)
{
	uint64_t units = bytes / VGPU_USAGE_OVERHEAD_UNIT + (bytes % VGPU_USAGE_OVERHEAD_UNIT != 0);

	__atomic_store_n(word, units < UINT32_MAX ? (uint32_t)units : UINT32_MAX, __ATOMIC_SEQ_CST);
}

static uint64_t saturating_sum(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

/* ---- the region's file ---- */

/* Fills a new file completely before it gets its name, so that whoever opens the name finds it whole. */
static int fill(int fd)
{
	const uint64_t identity = VGPU_USAGE_IDENTITY;
	int error = posix_fallocate(fd, 0, sizeof(struct vgpu_usage)); /* a full tmpfs would be SIGBUS later */

	if (error)
		return error;
	if (pwrite(fd, &identity, sizeof(identity), 0) != sizeof(identity))
		return errno ? errno : EIO;
	return fchmod(fd, 0666) < 0 ? errno : 0; /* processes of any user of the container share it */
}

static int create_file(void)
{
	char name[sizeof(VGPU_USAGE_PATH) + 48];
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	snprintf(name, sizeof(name), "%s.%d.%ld", VGPU_USAGE_PATH, (int)getpid(), now.tv_nsec);
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	int error = fill(fd);
	if (!error && link(name, VGPU_USAGE_PATH) < 0 && errno != EEXIST)
		error = errno;
	unlink(name);
	close(fd);
	return error;
}

/* Without O_CREAT: fs.protected_regular refuses that on a file of another user in a sticky directory. */
static int open_file(bool create)
{
	int fd = open(VGPU_USAGE_PATH, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

	if (fd >= 0 || errno != ENOENT || !create)
		return fd;
	int error = create_file();
	if (error) {
		errno = error;
		return -1;
	}
	return open(VGPU_USAGE_PATH, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

static struct vgpu_usage *map_file(int fd)
{
	if (lseek(fd, 0, SEEK_END) != (off_t)sizeof(struct vgpu_usage))
		return NULL;
	void *address = mmap(NULL, sizeof(struct vgpu_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (address == MAP_FAILED)
		return NULL;
	struct vgpu_usage *usage = address;
	if (load(&usage->identity) == VGPU_USAGE_IDENTITY)
		return usage;
	munmap(address, sizeof(struct vgpu_usage));
	return NULL;
}

/* In the child, nobody holds the lock; it has charged nothing and has no slot. */
static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	atomic_store(&own->slot, 0);
	own->self.owner = 0;
	atomic_store(&own->timed, 0);
	atomic_store(&reserving, 0);
}

/*
 * A child of a bare clone() runs no handlers: its copy of `own` lies on a page that the kernel empties for it
 * (Linux 4.14). Before that the pid in the upper half tells, at the price of a system call each time.
 */
static void watch_forks(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	pthread_atfork(NULL, NULL, after_fork);
	if (page == MAP_FAILED)
		return;
	wiped_on_fork = madvise(page, size, MADV_WIPEONFORK) == 0;
	own = page;
	atomic_store(&own->slot, 0); /* written before it is read: one page fault, not two */
}

/* Called with the lock held. */
static void open_region(bool create, bool *absent)
{
	int fd = open_file(create);

	*absent = fd < 0 && errno == ENOENT && !create;
	if (fd < 0) {
		if (!*absent)
			log_once(LOG_ERROR, "%s: %s; device memory is refused", VGPU_USAGE_PATH, strerror(errno));
		return;
	}
	struct vgpu_usage *usage = map_file(fd);
	close(fd);
	if (!usage) {
		log_once(LOG_ERROR, "%s: not a usage region of this version; device memory is refused", VGPU_USAGE_PATH);
		return;
	}
	atomic_store(&region, usage);
}

static struct vgpu_usage *region_or_null(bool create, bool *absent)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	*absent = false;
	if (!atomic_load(&region)) {
		pthread_once(&once, watch_forks);
		pthread_mutex_lock(&lock);
		if (!atomic_load(&region))
			open_region(create, absent);
		pthread_mutex_unlock(&lock);
	}
	return atomic_load(&region);
}

/* ---- cards ---- */

static uint64_t card_key(const uint8_t uuid[16])
{
	uint64_t half[2];

	memcpy(half, uuid, sizeof(half));
	uint64_t key = half[0] ^ (half[1] * 0x9e3779b97f4a7c15u);
	return key ? key : 1;
}

static int find_card(struct vgpu_usage *usage, const uint8_t uuid[16], bool create)
{
	uint64_t key = card_key(uuid);

	for (int i = 0; i < (int)VGPU_LIMITS_MAX_CARDS; i++) {
		struct vgpu_usage_card *card = &usage->cards[i];
		if (load(&card->key) == key)
			return i;
		if (create && swap(&card->key, 0, key))
			memcpy(card->uuid, uuid, sizeof(card->uuid));
		if (create && load(&card->key) == key)
			return i;
	}
	return USAGE_NO_CARD;
}

int usage_card(const uint8_t uuid[16])
{
	bool absent;
	struct vgpu_usage *usage = region_or_null(true, &absent);
	int card = usage ? find_card(usage, uuid, true) : USAGE_NO_CARD;

	if (usage && card == USAGE_NO_CARD)
		log_once(LOG_ERROR, "%s: more than %u cards; device memory is refused", VGPU_USAGE_PATH,
			 VGPU_LIMITS_MAX_CARDS);
	return card;
}

/* ---- slots ---- */

static uint32_t slots_seen(const struct vgpu_usage *usage)
{
	uint64_t seen = load(&usage->slots_seen);

	return seen < VGPU_USAGE_SLOTS ? (uint32_t)seen : VGPU_USAGE_SLOTS;
}

static void see_slot(struct vgpu_usage *usage, uint32_t index)
{
	uint64_t seen = load(&usage->slots_seen);

	while (seen <= index && !swap(&usage->slots_seen, seen, index + 1))
		seen = load(&usage->slots_seen);
}

/* Places are taken in turn and never given up: the pages of the others are not touched. */
static bool card_is_known(const struct vgpu_usage *usage, uint32_t card)
{
	return card < VGPU_LIMITS_MAX_CARDS && load(&usage->cards[card].key);
}

static void zero_charges(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; card_is_known(usage, card); card++) {
		store(&usage->charges[card][index].attempting, 0);
		store(&usage->charges[card][index].reserved, 0);
		store_overhead(&usage->overheads[card][index], 0);
	}
	store(&usage->slots[index].unseen, 0);
}

/* What the slot reserved for work under way was not used, as far as anybody can tell. */
static void give_back_time(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; card_is_known(usage, card); card++) {
		struct vgpu_usage_flight *flight = &usage->flights[card][index];
		uint32_t in_flight = __atomic_exchange_n(&flight->in_flight, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&flight->waiting, 0, __ATOMIC_SEQ_CST);
		if (in_flight)
			__atomic_fetch_add(&usage->times[card].level, (int64_t)in_flight * VGPU_USAGE_TIME_UNIT,
					   __ATOMIC_SEQ_CST);
		(void)swap(&usage->times[card].holder, index + 1, 0);
	}
}

static void empty_slot(struct vgpu_usage *usage, uint32_t index)
{
	store(&usage->slots[index].image, 0);
	store(&usage->slots[index].namespaces, 0);
	store(&usage->slots[index].managed, 0);
	store(&usage->slots[index].owner, 0);
}

/* By the slot's owner only. */
static void free_slot(struct vgpu_usage *usage, uint32_t index)
{
	zero_charges(usage, index);
	give_back_time(usage, index);
	empty_slot(usage, index);
}

/* What this process charged before an exec: pid and start time are its own, the image is not. */
static bool before_exec(const struct process_identity *self, const struct vgpu_usage_slot *slot)
{
	uint64_t image = load(&slot->image);

	return load(&slot->owner) == self->owner && image && image != self->image;
}

/* Called with the lock held. */
static const struct process_identity *identity(void)
{
	if (!own->self.owner || !wiped_on_fork)
		process_identify(&own->self);
	return &own->self;
}

enum { ANY_CARD = -1, OWN_ONLY = -2 };

static bool holds_something(const struct vgpu_usage *usage, uint32_t index, int card)
{
	const struct vgpu_usage_charge *charge = &usage->charges[card][index];

	return load(&charge->reserved) || load(&charge->attempting) || load(&usage->slots[index].unseen) >> card & 1 ||
	       __atomic_load_n(&usage->flights[card][index].in_flight, __ATOMIC_SEQ_CST);
}

/*
 * Frees the slots of the dead, of those who hold something of the card; the number of them. A look at another process costs
 * system calls. Called with the lock held.
 */
static int reap(struct vgpu_usage *usage, const struct process_identity *self, int card, enum look look)
{
	int freed = 0;

	for (uint32_t i = 0; i < slots_seen(usage); i++) {
		struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = load(&slot->owner);
		if (!owner)
			continue;
		if ((owner & ~VGPU_USAGE_REAPING) == self->owner) {
			if (!before_exec(self, slot))
				continue;
		} else if (card == OWN_ONLY || (card != ANY_CARD && !holds_something(usage, i, card)) ||
			   !process_is_dead(self, owner, load(&slot->namespaces), look)) {
			continue;
		}
		if (!swap(&slot->owner, owner, self->owner | VGPU_USAGE_REAPING))
			continue;
		free_slot(usage, i);
		freed++;
	}
	return freed;
}

static void reap_dead(struct vgpu_usage *usage, int card, enum look look)
{
	pthread_mutex_lock(&lock);
	reap(usage, identity(), card, look);
	pthread_mutex_unlock(&lock);
}

/*
 * For questions, which some programs ask all the time. Who is gone is found out at once, and a zombie or a pid that
 * was given out again within TELLING milliseconds; an allocation that would be refused looks at once for these too.
 */
static void reap_to_tell(struct vgpu_usage *usage, int card)
{
	static _Atomic int64_t next;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	int64_t milliseconds = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
	bool thorough = milliseconds >= atomic_load(&next);
	if (thorough)
		atomic_store(&next, milliseconds + TELLING);
	reap_dead(usage, card, thorough ? THOROUGH : PASSING);
}

static int claim_free(struct vgpu_usage *usage, const struct process_identity *self)
{
	for (uint32_t i = 0; i < VGPU_USAGE_SLOTS; i++) {
		struct vgpu_usage_slot *slot = &usage->slots[i];
		if (load(&slot->owner))
			continue;
		see_slot(usage, i); /* before the claim: who sums slots must not stop short of a charged one */
		if (!swap(&slot->owner, 0, self->owner))
			continue;
		store(&slot->image, self->image);
		store(&slot->namespaces, self->namespaces);
		return (int)i;
	}
	return NO_SLOT;
}

/* All slots so far are taken, and so many were added since the dead were last looked for. */
static bool crowded(const struct vgpu_usage *usage)
{
	uint32_t seen = slots_seen(usage);

	if (!seen || seen % CROWD)
		return false;
	for (uint32_t i = 0; i < seen; i++)
		if (!load(&usage->slots[i].owner))
			return false;
	return true;
}

static int claim_slot(struct vgpu_usage *usage)
{
	const struct process_identity *self = identity();

	reap(usage, self, OWN_ONLY, PASSING);
	if (crowded(usage)) /* those who died with nothing: nobody else would look for them */
		reap(usage, self, ANY_CARD, PASSING);
	int index = claim_free(usage, self);
	if (index == NO_SLOT && reap(usage, self, ANY_CARD, THOROUGH))
		index = claim_free(usage, self);
	if (index == NO_SLOT)
		log_once(LOG_ERROR, "%s: %u processes hold device memory; no more is given", VGPU_USAGE_PATH,
			 VGPU_USAGE_SLOTS);
	return index;
}

/* This process's slot, or NO_SLOT if it has none. */
static int slot_now(void)
{
	uint64_t word = atomic_load(&own->slot);

	if (!wiped_on_fork && word >> 32 != (uint64_t)getpid())
		return NO_SLOT;
	return (int)(word & UINT32_MAX) - 1; /* NO_SLOT for 0 */
}

static int slot_or_claim(struct vgpu_usage *usage)
{
	int index = slot_now();

	if (index != NO_SLOT)
		return index;
	pthread_mutex_lock(&lock);
	index = slot_now();
	if (index == NO_SLOT) {
		index = claim_slot(usage);
		if (index != NO_SLOT)
			atomic_store(&own->slot, (uint64_t)getpid() << 32 | (uint32_t)(index + 1));
	}
	pthread_mutex_unlock(&lock);
	return index;
}

/* ---- charges ---- */

struct totals {
	uint64_t attempting;
	uint64_t reserved;
	uint64_t overhead; /* of it */
	unsigned int unseen;
};

static struct totals sum_charges(struct vgpu_usage *usage, int card)
{
	struct totals totals = {0, 0, 0, 0};
	uint32_t seen = slots_seen(usage);

	for (uint32_t i = 0; i < seen; i++) {
		const struct vgpu_usage_charge *charge = &usage->charges[card][i];
		totals.attempting = saturating_sum(totals.attempting, load(&charge->attempting)); /* this one first */
		totals.reserved = saturating_sum(totals.reserved, load(&charge->reserved));
		totals.overhead = saturating_sum(totals.overhead, load_overhead(&usage->overheads[card][i]));
		totals.unseen += load(&usage->slots[i].unseen) >> card & 1;
	}
	return totals;
}

/*
 * What the driver took and nobody has booked: as much as somebody just looked up (UINT64_MAX: nobody did, so the most
 * that it can be), or what the host's figure has beyond all bookings.
 */
static uint64_t unbooked(const struct totals *totals, uint64_t looked_up, uint64_t overhead)
{
	uint64_t hosts = overhead > totals->overhead ? overhead - totals->overhead : 0;

	if (looked_up == UINT64_MAX)
		looked_up = totals->unseen * VGPU_USAGE_UNSEEN_MOST;
	return looked_up > hosts ? looked_up : hosts;
}

enum verdict { GRANTED, FULL, CONTENDED, UNSEEN };

static enum verdict attempt(struct vgpu_usage *usage, int card, int slot, uint64_t size, struct usage_limit limit,
			    uint64_t looked_up)
{
	struct vgpu_usage_charge *charge = &usage->charges[card][slot];

	add(&charge->attempting, size);
	struct totals totals = sum_charges(usage, card);
	uint64_t held = saturating_sum(totals.reserved, unbooked(&totals, looked_up, limit.overhead));
	bool fits = saturating_sum(held, totals.attempting) <= limit.memory;
	if (fits)
		add(&charge->reserved, size);
	add(&charge->attempting, -size);
	if (fits)
		return GRANTED;
	if (saturating_sum(totals.reserved, size) > limit.memory)
		return FULL;
	if (looked_up == UINT64_MAX && totals.unseen)
		return UNSEEN;
	return saturating_sum(held, size) > limit.memory ? FULL : CONTENDED;
}

static uint64_t (*_Atomic looks)(int card, const uint8_t uuid[16]);

void usage_look_with(uint64_t (*look)(int card, const uint8_t uuid[16]))
{
	atomic_store(&looks, look);
}

static uint64_t look_up(const struct vgpu_usage *usage, int card)
{
	uint64_t (*look)(int card, const uint8_t uuid[16]) = atomic_load(&looks);

	return look ? look(card, usage->cards[card].uuid) : 0;
}

/* Two that collide withdraw both: each comes back after a time of its own, so that one of them gets through. */
static void back_off(int slot, int try)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t mixed = ((uint64_t)now.tv_nsec + (uint64_t)slot * 7919) * 0x9e3779b97f4a7c15u >> 40;
	const struct timespec pause = {.tv_nsec = (long)(mixed % (uint64_t)(try < 10 ? 20000 : 100000))};
	nanosleep(&pause, NULL);
}

/*
 * Full counts only when it is seen again after the dead were reaped: the words of many slots are not read at one
 * instant, so a single look may see one process's bytes before they were released and another's after.
 */
static bool reserve(struct vgpu_usage *usage, int card, int slot, uint64_t size, struct usage_limit limit,
		    uint64_t looked_up)
{
	bool reaped = false;
	const uint64_t given = looked_up;

	for (int try = 0; try < CONTENTION_TRIES; try++) {
		enum verdict verdict = attempt(usage, card, slot, size, limit, looked_up);
		if (verdict == GRANTED)
			return true;
		if (verdict == UNSEEN) {
			looked_up = look_up(usage, card);
			continue;
		}
		if (verdict == FULL) {
			if (reaped)
				return false;
			reap_dead(usage, ANY_CARD, THOROUGH);
			reaped = true;
			looked_up = given; /* the dead may have been among them */
			continue;
		}
		if (try % REAP_EACH == REAP_EACH / 2) /* one killed in an attempt never withdraws it */
			reap_dead(usage, ANY_CARD, THOROUGH);
		back_off(slot, try);
	}
	return false;
}

/* This process's slot until leave_slot(); NO_SLOT: it has none and gets none. */
static int enter_slot(struct vgpu_usage *usage)
{
	atomic_fetch_add(&reserving, 1);
	return atomic_load(&leaving) ? NO_SLOT : slot_or_claim(usage);
}

static void leave_slot(void)
{
	atomic_fetch_sub(&reserving, 1);
}

bool usage_reserve(int card, uint64_t size, struct usage_limit limit)
{
	struct vgpu_usage *usage = atomic_load(&region);

	if (size > limit.memory)
		return false;
	int slot = enter_slot(usage);
	bool granted = slot != NO_SLOT && reserve(usage, card, slot, size, limit, UINT64_MAX);
	leave_slot();
	return granted;
}

bool usage_reserve_overhead(int card, uint64_t size, struct usage_limit limit, uint64_t others)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = enter_slot(usage);

	limit.overhead = 0; /* it has this process's part in it */
	bool granted = slot != NO_SLOT && reserve(usage, card, slot, size, limit, others);
	leave_slot();
	return granted;
}

void usage_tell_overhead(int card, uint64_t bytes)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = enter_slot(usage);

	if (slot != NO_SLOT)
		store_overhead(&usage->overheads[card][slot], bytes);
	leave_slot();
}

bool usage_force(int card, uint64_t size)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = enter_slot(usage);

	if (slot != NO_SLOT)
		add(&usage->charges[card][slot].reserved, size);
	leave_slot();
	return slot != NO_SLOT;
}

void usage_unseen(int card, bool unseen)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = unseen ? enter_slot(usage) : slot_now();

	if (slot != NO_SLOT && unseen)
		__atomic_fetch_or(&usage->slots[slot].unseen, (uint64_t)1 << card, __ATOMIC_SEQ_CST);
	else if (slot != NO_SLOT)
		__atomic_fetch_and(&usage->slots[slot].unseen, ~((uint64_t)1 << card), __ATOMIC_SEQ_CST);
	if (unseen)
		leave_slot();
}

bool usage_has_room(int card, struct usage_limit limit)
{
	struct totals totals = sum_charges(atomic_load(&region), card);
	uint64_t held = saturating_sum(totals.reserved, unbooked(&totals, UINT64_MAX, limit.overhead));

	return saturating_sum(held, totals.attempting) <= limit.memory;
}

unsigned int usage_unseen_count(int card)
{
	return sum_charges(atomic_load(&region), card).unseen;
}

uint64_t usage_own(int card)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = slot_now();

	return slot == NO_SLOT ? 0 : load(&usage->charges[card][slot].reserved);
}

void usage_managed(int64_t change)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = slot_now();

	if (slot != NO_SLOT)
		add(&usage->slots[slot].managed, (uint64_t)change);
}

void usage_release(int card, uint64_t size)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = slot_now();

	if (slot != NO_SLOT)
		add(&usage->charges[card][slot].reserved, -size);
}

/* What a tenant wrote to the words of a free slot would be this process's work under way, and be waited for. */
static void begin_time(struct vgpu_usage *usage, int card, uint32_t slot)
{
	struct vgpu_usage_flight *flight = &usage->flights[card][slot];
	uint32_t bit = (uint32_t)1 << card;

	if (atomic_fetch_or(&own->timed, bit) & bit)
		return;
	__atomic_store_n(&flight->in_flight, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&flight->waiting, 0, __ATOMIC_SEQ_CST);
}

bool usage_time(const uint8_t uuid[16], struct usage_time *place)
{
	int card = usage_card(uuid);
	struct vgpu_usage *usage = atomic_load(&region);

	if (card == USAGE_NO_CARD)
		return false;
	int slot = enter_slot(usage);
	leave_slot();
	if (slot == NO_SLOT)
		return false;
	begin_time(usage, card, (uint32_t)slot);
	*place = (struct usage_time){&usage->times[card], usage->flights[card], (uint32_t)slot};
	return true;
}

uint32_t usage_slots(void)
{
	const struct vgpu_usage *usage = atomic_load(&region);

	return usage ? slots_seen(usage) : 0;
}

struct vgpu_usage_time *usage_time_at(int index, const struct vgpu_usage_flight **flights)
{
	struct vgpu_usage *usage = atomic_load(&region);

	if (!usage || index >= (int)VGPU_LIMITS_MAX_CARDS || !load(&usage->cards[index].key))
		return NULL;
	*flights = usage->flights[index];
	return &usage->times[index];
}

void usage_reap(void)
{
	struct vgpu_usage *usage = atomic_load(&region);

	if (usage)
		reap_dead(usage, ANY_CARD, THOROUGH);
}

bool usage_held(const uint8_t uuid[16], uint64_t unbooked_bytes, uint64_t overhead, uint64_t *held)
{
	bool absent;
	struct vgpu_usage *usage = region_or_null(false, &absent);

	*held = 0;
	if (!usage)
		return absent;
	int card = find_card(usage, uuid, false);
	if (card == USAGE_NO_CARD)
		return true;
	reap_to_tell(usage, card);
	struct totals totals = sum_charges(usage, card);
	*held = saturating_sum(totals.reserved, unbooked(&totals, unbooked_bytes, overhead));
	return true;
}

unsigned int usage_processes(const uint8_t uuid[16], struct usage_process *list, unsigned int room)
{
	bool absent;
	struct vgpu_usage *usage = region_or_null(false, &absent);
	int card = usage ? find_card(usage, uuid, false) : USAGE_NO_CARD;
	unsigned int count = 0;

	if (card == USAGE_NO_CARD)
		return 0;
	reap_to_tell(usage, card);
	pthread_mutex_lock(&lock);
	const uint64_t namespaces = identity()->namespaces;
	pthread_mutex_unlock(&lock);
	for (uint32_t i = 0; i < slots_seen(usage); i++) {
		const struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = load(&slot->owner);
		uint64_t held = load(&usage->charges[card][i].reserved);
		bool unseen = load(&slot->unseen) >> card & 1;
		if (!owner || owner & VGPU_USAGE_REAPING || !(held || unseen) || load(&slot->namespaces) != namespaces)
			continue;
		if (count < room)
			list[count] = (struct usage_process){owner & (((uint64_t)1 << VGPU_USAGE_PID_BITS) - 1), held, unseen};
		count++;
	}
	return count;
}

/*
 * At exit the driver still holds what was not freed, so a slot with charges stays until the process is gone and is
 * reaped then; an empty one is freed now. (The library is linked nodelete: this is the exit, never a dlclose.)
 */
__attribute__((destructor)) static void leave(void)
{
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = slot_now();
	uint64_t charged = 0;

	atomic_store(&leaving, true);
	if (!usage || slot == NO_SLOT || atomic_load(&reserving))
		return;
	for (uint32_t card = 0; card_is_known(usage, card); card++)
		charged |= load(&usage->charges[card][slot].attempting) | load(&usage->charges[card][slot].reserved);
	if (charged)
		return;
	zero_charges(usage, (uint32_t)slot);
	if (atomic_load(&own->timed)) /* else its words are as they were found, and not worth two page faults */
		give_back_time(usage, (uint32_t)slot);
	empty_slot(usage, (uint32_t)slot);
}

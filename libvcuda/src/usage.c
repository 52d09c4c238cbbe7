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
	NO_SLOT = -1,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* this process's threads: opening, claiming, reaping */
static struct vgpu_usage *_Atomic region;
static _Atomic uint64_t first_slot;
static _Atomic uint64_t *own_slot = &first_slot; /* index + 1; see watch_forks */
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
	atomic_store(own_slot, 0);
	atomic_store(&reserving, 0);
}

/*
 * A child of a bare clone() runs no handlers: its copy of the slot lies on a page that the kernel empties for it
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
	own_slot = page;
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

static void zero_charges(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; card < VGPU_LIMITS_MAX_CARDS; card++) {
		store(&usage->charges[card][index].attempting, 0);
		store(&usage->charges[card][index].reserved, 0);
	}
}

/* What the slot reserved for work under way was not used, as far as anybody can tell. */
static void give_back_time(struct vgpu_usage *usage, uint32_t index)
{
	for (uint32_t card = 0; card < VGPU_LIMITS_MAX_CARDS; card++) {
		struct vgpu_usage_flight *flight = &usage->flights[card][index];
		uint32_t in_flight = __atomic_exchange_n(&flight->in_flight, 0, __ATOMIC_SEQ_CST);
		__atomic_store_n(&flight->waiting, 0, __ATOMIC_SEQ_CST);
		if (in_flight)
			__atomic_fetch_add(&usage->times[card].level, (int64_t)in_flight * VGPU_USAGE_TIME_UNIT,
					   __ATOMIC_SEQ_CST);
		(void)swap(&usage->times[card].holder, index + 1, 0);
	}
}

/* By the slot's owner only. */
static void free_slot(struct vgpu_usage *usage, uint32_t index)
{
	zero_charges(usage, index);
	give_back_time(usage, index);
	store(&usage->slots[index].image, 0);
	store(&usage->slots[index].namespaces, 0);
	store(&usage->slots[index].managed, 0);
	store(&usage->slots[index].owner, 0);
}

/* What this process charged before an exec: pid and start time are its own, the image is not. */
static bool before_exec(const struct process_identity *self, const struct vgpu_usage_slot *slot)
{
	uint64_t image = load(&slot->image);

	return load(&slot->owner) == self->owner && image && image != self->image;
}

/* Whom reap() looks at: a look at another process costs system calls. */
enum whose { OWN, EVERYBODYS };

/* Frees the slots of the dead; the number of them. Called with the lock held. */
static int reap(struct vgpu_usage *usage, const struct process_identity *self, enum whose whose)
{
	int freed = 0;

	for (uint32_t i = 0; i < slots_seen(usage); i++) {
		struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = load(&slot->owner);
		if (!owner)
			continue;
		bool own = (owner & ~VGPU_USAGE_REAPING) == self->owner;
		if (own ? !before_exec(self, slot)
			: whose == OWN || !process_is_dead(self, owner, load(&slot->namespaces)))
			continue;
		if (!swap(&slot->owner, owner, self->owner | VGPU_USAGE_REAPING))
			continue;
		free_slot(usage, i);
		freed++;
	}
	return freed;
}

static int reap_dead(struct vgpu_usage *usage)
{
	struct process_identity self;

	pthread_mutex_lock(&lock);
	process_identify(&self);
	int freed = reap(usage, &self, EVERYBODYS);
	pthread_mutex_unlock(&lock);
	return freed;
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

static int claim_slot(struct vgpu_usage *usage)
{
	struct process_identity self;

	process_identify(&self);
	reap(usage, &self, OWN);
	int index = claim_free(usage, &self);
	if (index == NO_SLOT && reap(usage, &self, EVERYBODYS))
		index = claim_free(usage, &self);
	if (index == NO_SLOT)
		log_once(LOG_ERROR, "%s: %u processes hold device memory; no more is given", VGPU_USAGE_PATH,
			 VGPU_USAGE_SLOTS);
	return index;
}

/* This process's slot, or NO_SLOT if it has none. */
static int slot_now(void)
{
	uint64_t word = atomic_load(own_slot);

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
			atomic_store(own_slot, (uint64_t)getpid() << 32 | (uint32_t)(index + 1));
	}
	pthread_mutex_unlock(&lock);
	return index;
}

/* ---- charges ---- */

struct totals {
	uint64_t attempting;
	uint64_t reserved;
};

static struct totals sum_charges(struct vgpu_usage *usage, int card)
{
	struct totals totals = {0, 0};

	for (uint32_t i = 0; i < slots_seen(usage); i++) {
		const struct vgpu_usage_charge *charge = &usage->charges[card][i];
		totals.attempting = saturating_sum(totals.attempting, load(&charge->attempting)); /* this one first */
		totals.reserved = saturating_sum(totals.reserved, load(&charge->reserved));
	}
	return totals;
}

enum verdict { GRANTED, FULL, CONTENDED };

static enum verdict attempt(struct vgpu_usage *usage, int card, int slot, uint64_t size, uint64_t limit)
{
	struct vgpu_usage_charge *charge = &usage->charges[card][slot];

	add(&charge->attempting, size);
	struct totals totals = sum_charges(usage, card);
	bool fits = saturating_sum(totals.reserved, totals.attempting) <= limit;
	if (fits)
		add(&charge->reserved, size);
	add(&charge->attempting, -size);
	if (fits)
		return GRANTED;
	return saturating_sum(totals.reserved, size) > limit ? FULL : CONTENDED;
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
static bool reserve(struct vgpu_usage *usage, int card, int slot, uint64_t size, uint64_t limit)
{
	bool reaped = false;

	for (int try = 0; try < CONTENTION_TRIES; try++) {
		enum verdict verdict = attempt(usage, card, slot, size, limit);
		if (verdict == GRANTED)
			return true;
		if (verdict == FULL) {
			if (reaped)
				return false;
			reap_dead(usage);
			reaped = true;
			continue;
		}
		if (try % REAP_EACH == REAP_EACH / 2) /* one killed in an attempt never withdraws it */
			reap_dead(usage);
		back_off(slot, try);
	}
	return false;
}

bool usage_reserve(int card, uint64_t size, uint64_t limit)
{
	struct vgpu_usage *usage = atomic_load(&region);
	bool granted = false;

	if (size > limit)
		return false;
	atomic_fetch_add(&reserving, 1);
	if (!atomic_load(&leaving)) {
		int slot = slot_or_claim(usage);
		granted = slot != NO_SLOT && reserve(usage, card, slot, size, limit);
	}
	atomic_fetch_sub(&reserving, 1);
	return granted;
}

bool usage_force(int card, uint64_t size)
{
	struct vgpu_usage *usage = atomic_load(&region);
	bool booked = false;

	atomic_fetch_add(&reserving, 1);
	if (!atomic_load(&leaving)) {
		int slot = slot_or_claim(usage);
		booked = slot != NO_SLOT;
		if (booked)
			add(&usage->charges[card][slot].reserved, size);
	}
	atomic_fetch_sub(&reserving, 1);
	return booked;
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

bool usage_time(const uint8_t uuid[16], struct usage_time *place)
{
	int card = usage_card(uuid);
	struct vgpu_usage *usage = atomic_load(&region);
	int slot = NO_SLOT;

	if (card == USAGE_NO_CARD)
		return false;
	atomic_fetch_add(&reserving, 1);
	if (!atomic_load(&leaving))
		slot = slot_or_claim(usage);
	atomic_fetch_sub(&reserving, 1);
	if (slot == NO_SLOT)
		return false;
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
		reap_dead(usage);
}

bool usage_held(const uint8_t uuid[16], uint64_t *held)
{
	bool absent;
	struct vgpu_usage *usage = region_or_null(false, &absent);

	*held = 0;
	if (!usage)
		return absent;
	int card = find_card(usage, uuid, false);
	if (card == USAGE_NO_CARD)
		return true;
	reap_dead(usage);
	*held = sum_charges(usage, card).reserved;
	return true;
}

unsigned int usage_processes(const uint8_t uuid[16], struct usage_process *list, unsigned int room)
{
	bool absent;
	struct vgpu_usage *usage = region_or_null(false, &absent);
	int card = usage ? find_card(usage, uuid, false) : USAGE_NO_CARD;
	struct process_identity self;
	unsigned int count = 0;

	if (card == USAGE_NO_CARD)
		return 0;
	reap_dead(usage);
	process_identify(&self);
	for (uint32_t i = 0; i < slots_seen(usage); i++) {
		const struct vgpu_usage_slot *slot = &usage->slots[i];
		uint64_t owner = load(&slot->owner);
		uint64_t held = load(&usage->charges[card][i].reserved);
		if (!owner || owner & VGPU_USAGE_REAPING || !held || load(&slot->namespaces) != self.namespaces)
			continue;
		if (count < room)
			list[count] = (struct usage_process){owner & (((uint64_t)1 << VGPU_USAGE_PID_BITS) - 1), held};
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
	for (uint32_t card = 0; card < VGPU_LIMITS_MAX_CARDS; card++)
		charged |= load(&usage->charges[card][slot].attempting) | load(&usage->charges[card][slot].reserved);
	if (!charged)
		free_slot(usage, (uint32_t)slot);
}

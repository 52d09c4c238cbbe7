/*
 * See compute/presence.h. The offset of a lock has 24 bits for the card, one bit that separates the queue from the
 * work, and 38 bits for the container's byte or for a time. The card is in it because containers that started beside one
 * of an earlier version have one file for all cards with it.
 */
#include "compute/presence.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bounds.h"
#include "base/log.h"
#include "compute/estimates.h"
#include "driver/clock.h"
#include "shared/limits.h"
#include "shared/usage.h"
#include "vgpu_card.h"
#include "vgpu_limits.h"

#define OWN_BITS 38
#define OWN_MASK (((uint64_t)1 << OWN_BITS) - 1)

#define LOOK_EACH NS_PER_S

#define SLOW_CALL (10 * NS_PER_US) /* a call takes 1 to 2 us, beside 2,500 locks of others 10 us */
#define SLOW_FOR (60 * NS_PER_S)
enum { TIMED_EACH = 16, TIMED = 64 };

#define UNWOKEN (500 * NS_PER_US)   /* between two looks of a process that nobody wakes */
#define SLOW_WAIT (100 * NS_PER_US) /* of CPU time: a wait or a wake-up takes some us, beside 5,000 waiters 200 us */
enum { MOST_WOKEN = 64, MOST_SLOW_WAITS = 8 };

/* A lease's byte: on a second range of each card, the container's low bits and the time until which work is under way. */
#define LEASE_TIME_BITS 25
#define LEASE_TIME_MASK (((uint64_t)1 << LEASE_TIME_BITS) - 1)
#define LEASE_CONTAINER_MASK (((uint64_t)1 << (OWN_BITS + 1 - LEASE_TIME_BITS)) - 1)
#define LEASE_LETS ((uint64_t)7) /* in the time's low bits: who may run beside the work, enum presence_lets */
#define LEASE_GRACE (2 * NS_PER_MS)        /* from a lease's end until others go on */

enum { MOST_IGNORED = 8, HIGH_NUMBER = 600 };

struct ignored {
	uint64_t at[MOST_IGNORED]; /* offsets, in ascending order */
	unsigned int count;
};

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

static struct card {
	char path[sizeof(VGPU_PRESENCE_DIR) + 33];
	int file; /* -1: none */
	struct stat identity;
	uint32_t *word;
	uint64_t at, leases; /* the first offsets of its locks, and of its leases */
	uint64_t next_look;  /* when to look for the file; UINT64_MAX: not again */
	uint32_t is_usable;
	uint32_t is_slow; /* it is not used for a while */
	unsigned int calls, timed, slow; /* lock calls; how many of late were timed, and took long */
	unsigned int slow_waits, slow_wakes; /* by how many more waits, and wake-ups, took long of late than did not */
	uint64_t unwoken_until; /* until then this process wakes nobody on the card, and waits for no wake-up */
} cards[VGPU_LIMITS_MAX_CARDS] __attribute__((aligned(64)));

static unsigned int card_count;
static unsigned int awaited; /* the card on which this process waits for another one */
static uint64_t own; /* the container's byte on each card: the inode of its limits file, unique on the host */
static uint64_t leased = UINT64_MAX; /* this process's lease, in the leases of each card; UINT64_MAX: none */
static struct ignored works, places; /* locks of containers at work, and in the queue */
static bool has_seen_range;
static uint32_t is_refused; /* the kernel or a sandbox has no such locks for this process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t hash_of(const uint8_t uuid[16], uint64_t hash)
{
	for (int i = 0; i < 16; i++)
		hash = (hash ^ uuid[i]) * 0x100000001b3u;
	return hash;
}

static uint64_t offset_of(uint64_t hash)
{
	return hash >> (64 - 24) << (OWN_BITS + 1);
}

/* The leases of a card are where another card's locks could be. */
static void name_card(struct card *card, const uint8_t uuid[16])
{
	uint64_t hash = hash_of(uuid, 0xcbf29ce484222325u);
	char *end = stpcpy(card->path, VGPU_PRESENCE_DIR "/");

	for (int i = 0; i < 16; i++, end += 2)
		snprintf(end, 3, "%02x", uuid[i]);
	card->file = -1;
	card->at = offset_of(hash);
	card->leases = offset_of(hash_of(uuid, hash));
}

/* fstat() became a symbol of glibc only in version 2.33. */
static bool stat_of(int fd, struct stat *status)
{
	return syscall(SYS_fstat, fd, status) == 0;
}

/* With O_NONBLOCK: a process of another container may hold a lease, for which open(2) would wait 45 s. */
static int open_now(const struct card *card)
{
	return open(card->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

/* Uses a high descriptor number: some programs rely on low ones. */
static void open_file(struct card *card)
{
	int low = open_now(card);

	if (low < 0)
		return;
	card->file = fcntl(low, F_DUPFD_CLOEXEC, HIGH_NUMBER);
	if (card->file < 0)
		card->file = low;
	else
		close(low);
}

/* Maps an open file of its own: a mapping keeps the locks of its open file after close(2), and in a child. */
static bool map_word(struct card *card)
{
	int other = card->word ? -1 : open_now(card);

	if (other >= 0) {
		void *address = mmap(NULL, sizeof(*card->word), PROT_READ, MAP_SHARED, other, 0);
		if (address != MAP_FAILED)
			card->word = address;
		close(other);
	}
	return card->word;
}

/* A daemon closes descriptors that it did not open; the number may be another file's now. */
static bool is_ours(const struct card *card)
{
	struct stat now;

	return card->file >= 0 && stat_of(card->file, &now) && now.st_dev == card->identity.st_dev &&
	       now.st_ino == card->identity.st_ino;
}

static bool is_usable(const struct card *card)
{
	return __atomic_load_n(&card->is_usable, __ATOMIC_ACQUIRE);
}

static void close_file(struct card *card)
{
	if (is_ours(card))
		close(card->file);
	card->file = -1;
}

/* This process holds no lock from now on. */
static void open_again(void)
{
	for (struct card *card = cards; card < cards + card_count; card++) {
		if (!is_usable(card))
			continue;
		close_file(card);
		open_file(card);
	}
	leased = UINT64_MAX;
}

bool presence_is_kept(void)
{
	for (const struct card *card = cards; card < cards + card_count; card++)
		if (is_usable(card) && !is_ours(card)) {
			open_again();
			return false;
		}
	return true;
}

static uint64_t queue_of(const struct card *card)
{
	return card->at + OWN_MASK + 1;
}

/* Notes that the locks do not work. Else "refused" would look like "nobody is there", and all work would mix. */
static void note_error(int error)
{
	if (error != EPERM && error != ENOSYS && error != EINVAL && error != EOPNOTSUPP)
		return;
	__atomic_store_n(&is_refused, 1, __ATOMIC_RELAXED);
	usage_locks_refused();
	log_once(LOG_WARNING,
		 "fcntl F_OFD_SETLK on %s: %s (a seccomp profile or a sandbox); this container does not take "
		 "turns with others, its own account holds it to its core share",
		 VGPU_PRESENCE_DIR, strerror(error));
}

/* ---- a flood of locks: the kernel goes over all locks of the file at each call ---- */

/* Leaves the file, and with it all locks on it. */
static void note_slow(struct card *card)
{
	uint64_t now = clock_now();

	__atomic_store_n(&card->next_look, now + SLOW_FOR, __ATOMIC_RELAXED);
	__atomic_store_n(&estimates_doubted_until, now, __ATOMIC_RELAXED); /* the locks may have failed for a while */
	__atomic_store_n(&card->is_slow, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&card->is_usable, 0, __ATOMIC_RELEASE);
	close_file(card);
	usage_locks_slow(true);
	log_once(LOG_WARNING,
		 "fcntl on %s takes more than 10 us: a container of this card holds very many locks; for a minute at a "
		 "time this container does not take turns there, its own account holds it to its core share",
		 card->path);
}

static bool any_is_slow(void)
{
	unsigned int i = 0;

	while (i < card_count && !__atomic_load_n(&cards[i].is_slow, __ATOMIC_RELAXED))
		i++;
	return i < card_count;
}

/* By the median, which a thread that was interrupted does not change. */
static void note_time(struct card *card, uint64_t taken)
{
	card->slow += taken > SLOW_CALL;
	if (++card->timed < TIMED)
		return;
	bool is_slow = card->slow > TIMED / 2;
	card->slow = card->timed = 0;
	if (is_slow) {
		note_slow(card);
		return;
	}
	__atomic_store_n(&card->is_slow, 0, __ATOMIC_RELAXED);
	if (!any_is_slow())
		usage_locks_slow(false);
}

/* Times one of sixteen calls, and every one while most take long. */
static int call(struct card *card, int command, struct flock *lock)
{
	if (++card->calls % TIMED_EACH && 2 * card->slow <= card->timed)
		return fcntl(card->file, command, lock);
	uint64_t began = clock_thread_time();
	int result = fcntl(card->file, command, lock);
	int error = errno;
	note_time(card, clock_thread_time() - began);
	errno = error;
	return result;
}

static bool ofd_lock(struct card *card, int command, short type, uint64_t from, uint64_t *length, uint64_t *where)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)*length};

	if (card->file < 0)
		return false;
	if (call(card, command, &lock) != 0) {
		note_error(errno);
		return false;
	}
	if (lock.l_type == F_UNLCK)
		return false;
	*where = bounds_max(from, (uint64_t)lock.l_start);
	*length = (uint64_t)lock.l_len;
	return true;
}

static void set(struct card *card, short type, uint64_t byte)
{
	uint64_t where, length = 1;

	(void)ofd_lock(card, F_OFD_SETLK, type, byte, &length, &where);
}

static void drop(struct card *card, uint64_t byte)
{
	if (is_ours(card))
		set(card, F_UNLCK, byte);
}

/* ---- finding the files ---- */

/* Takes and drops a lock that nobody reads, and looks for it, through this process's own open file. */
static bool has_locks(struct card *card)
{
	uint64_t where, length = 1;

	set(card, F_RDLCK, card->leases + LEASE_TIME_MASK);
	(void)ofd_lock(card, F_OFD_GETLK, F_WRLCK, card->leases + LEASE_TIME_MASK, &length, &where);
	set(card, F_UNLCK, card->leases + LEASE_TIME_MASK);
	return !__atomic_load_n(&is_refused, __ATOMIC_RELAXED);
}

static void find_cards(void)
{
	uint8_t uuids[VGPU_LIMITS_MAX_CARDS][16];
	struct stat limits;

	int fd = open(VGPU_LIMITS_PATH, O_PATH | O_CLOEXEC);
	bool is_known = fd >= 0 && stat_of(fd, &limits);
	if (fd >= 0)
		close(fd);
	if (!is_known)
		return;
	own = limits.st_ino & OWN_MASK;
	unsigned int count = limits_list(uuids, VGPU_LIMITS_MAX_CARDS);
	for (unsigned int i = 0; i < count; i++)
		name_card(&cards[i], uuids[i]);
	__atomic_store_n(&card_count, count, __ATOMIC_RELEASE);
}

static void look(struct card *card)
{
	uint64_t now = clock_now();

	if (is_usable(card) || now < card->next_look)
		return;
	card->next_look = UINT64_MAX;
	open_file(card);
	if (card->file < 0 && errno == EWOULDBLOCK) {
		card->next_look = now + LOOK_EACH;
		log_once(LOG_WARNING,
			 "%s: another container has a lease on it; until that ends, containers of this card "
			 "do not take turns with this one",
			 card->path);
	}
	if (card->file >= 0 && stat_of(card->file, &card->identity) &&
	    card->identity.st_size >= (off_t)sizeof(*card->word) && has_locks(card) && map_word(card))
		__atomic_store_n(&card->is_usable, 1, __ATOMIC_RELEASE); /* the rest is set: threads use it unlocked */
}

unsigned int presence_card(const uint8_t uuid[16])
{
	struct card wanted;
	unsigned int i = 0;

	pthread_mutex_lock(&lock);
	if (!card_count)
		find_cards();
	pthread_mutex_unlock(&lock);
	name_card(&wanted, uuid);
	while (i < card_count && strcmp(cards[i].path, wanted.path) != 0)
		i++;
	(void)presence_is_available(i);
	return i;
}

bool presence_is_available(unsigned int number)
{
	struct card *card = &cards[number];

	if (number >= card_count)
		return false;
	if (is_usable(card))
		return !__atomic_load_n(&is_refused, __ATOMIC_RELAXED);
	uint64_t next = __atomic_load_n(&card->next_look, __ATOMIC_RELAXED);
	if (next == UINT64_MAX || (next && clock_now() < next))
		return false;
	pthread_mutex_lock(&lock);
	look(card);
	pthread_mutex_unlock(&lock);
	return is_usable(card);
}

bool presence_is_slow(unsigned int card)
{
	return card < card_count && __atomic_load_n(&cards[card].is_slow, __ATOMIC_RELAXED) && !is_usable(&cards[card]);
}

/* ---- at work, and in the queue ---- */

/* The card with the lock at `where`, which is none of a lease. */
static struct card *card_of(uint64_t where)
{
	unsigned int i = 0;

	while (i + 1 < card_count && (where < cards[i].at || where > queue_of(&cards[i]) + OWN_MASK))
		i++;
	return &cards[i];
}

/* Whether another process holds a lock in the range. libvcuda locks single bytes: a longer lock is a forged one. */
static bool is_range_locked(uint64_t from, uint64_t to, uint64_t *where)
{
	uint64_t length = to - from;

	if (from >= to || !ofd_lock(card_of(from), F_OFD_GETLK, F_WRLCK, from, &length, where))
		return false;
	has_seen_range |= length != 1;
	return true;
}

/* The list that has the locks of this part of a card's range. */
static struct ignored *list_of(uint64_t where)
{
	return where & (OWN_MASK + 1) ? &places : &works;
}

/* Whether another process holds a lock in [from, to). Ignored locks do not count. */
static bool is_locked(uint64_t from, uint64_t to, uint64_t *where)
{
	const struct ignored *list = list_of(from);

	for (unsigned int i = 0; i < list->count && from < to; i++) {
		if (list->at[i] < from || list->at[i] >= to)
			continue;
		if (is_range_locked(from, list->at[i], where))
			return true;
		from = list->at[i] + 1;
	}
	return is_range_locked(from, to, where);
}

void presence_hold(void)
{
	for (struct card *card = cards; card < cards + card_count; card++)
		set(card, F_RDLCK, card->at + own);
}

/* The kernel returns some lock in the range, not the first one. It may be another process's of this container. */
static unsigned int list_locked(uint64_t from, uint64_t to, uint64_t *where, unsigned int count, unsigned int most)
{
	uint64_t found;

	if (count == most || !is_locked(from, to, &found))
		return count;
	where[count] = found;
	count += (found & OWN_MASK) != own;
	return list_locked(found + 1, to, where, list_locked(from, found, where, count, most), most);
}

unsigned int presence_of_others(uint64_t *where, unsigned int most)
{
	unsigned int count = 0;

	for (struct card *card = cards; card < cards + card_count; card++)
		count = list_locked(card->at, queue_of(card), where, count, most);
	return count;
}

static uint64_t byte_of(uint64_t time)
{
	return time / PRESENCE_PLACE & OWN_MASK;
}

void presence_queue(uint64_t time)
{
	for (struct card *card = cards; card < cards + card_count; card++)
		set(card, F_RDLCK, queue_of(card) + byte_of(time));
}

void presence_unqueue(uint64_t time)
{
	for (struct card *card = cards; card < cards + card_count; card++)
		drop(card, queue_of(card) + byte_of(time));
}

bool presence_waiting_before(uint64_t time, uint64_t *where)
{
	uint64_t length = time == UINT64_MAX ? OWN_MASK + 1 : byte_of(time);

	for (struct card *card = cards; card < cards + card_count; card++)
		if (is_locked(queue_of(card), queue_of(card) + length, where))
			return true;
	return false;
}

bool presence_is_awaited(unsigned int card)
{
	uint64_t where, first = queue_of(&cards[card]);

	return is_locked(first, first + OWN_MASK + 1, &where);
}

/* Stops ignoring the list's locks that their owners have dropped. */
static bool ignores(struct ignored *list)
{
	unsigned int kept = 0;
	uint64_t where;

	for (unsigned int i = 0; i < list->count; i++)
		if (is_range_locked(list->at[i], list->at[i] + 1, &where))
			list->at[kept++] = list->at[i];
	list->count = kept;
	return kept;
}

void presence_ignore(uint64_t where)
{
	struct ignored *list = list_of(where);

	if (list->count == MOST_IGNORED && (ignores(list), list->count == MOST_IGNORED))
		return;
	unsigned int at = list->count++;
	for (; at && list->at[at - 1] > where; at--)
		list->at[at] = list->at[at - 1];
	list->at[at] = where;
}

bool presence_ignores(void)
{
	(void)ignores(&places);
	return ignores(&works);
}

bool presence_saw_range(void)
{
	return __atomic_exchange_n(&has_seen_range, false, __ATOMIC_RELAXED);
}

/* ---- leases ---- */

static uint64_t first_lease(uint64_t container)
{
	return (container & LEASE_CONTAINER_MASK) << LEASE_TIME_BITS;
}

static void drop_lease(uint64_t lease)
{
	for (struct card *card = cards; lease != UINT64_MAX && card < cards + card_count; card++)
		drop(card, card->leases + lease);
}

void presence_lease(uint64_t until, enum presence_lets lets)
{
	uint64_t time = until / PRESENCE_PLACE & LEASE_TIME_MASK & ~LEASE_LETS;
	uint64_t lease = first_lease(own) | time | lets, before = leased;

	if (lease == before)
		return;
	leased = lease;
	for (struct card *card = cards; card < cards + card_count; card++)
		set(card, F_RDLCK, card->leases + lease);
	drop_lease(before);
}

void presence_drop(void)
{
	for (struct card *card = cards; card < cards + card_count; card++)
		drop(card, card->at + own);
	drop_lease(leased);
	leased = UINT64_MAX;
}

/* Whether a lease in [from, to) of the container's leases is held. The times wrap around. */
static bool find_lease(struct card *card, uint64_t all, uint64_t from, uint64_t to, uint64_t *where)
{
	from &= LEASE_TIME_MASK;
	to &= LEASE_TIME_MASK;
	uint64_t length = (from < to ? to : LEASE_TIME_MASK + 1) - from;
	if (ofd_lock(card, F_OFD_GETLK, F_WRLCK, all + from, &length, where))
		return true;
	length = to;
	return from > to && to && ofd_lock(card, F_OFD_GETLK, F_WRLCK, all, &length, where);
}

enum presence_lease presence_lease_of(uint64_t where, uint64_t now)
{
	struct card *card = card_of(where);
	uint64_t all = card->leases + first_lease(where - card->at), from = (now - LEASE_GRACE) / PRESENCE_PLACE,
		 to = (now + PRESENCE_LEASE_MOST) / PRESENCE_PLACE, found;
	uint64_t length = LEASE_TIME_MASK + 1;

	if (!find_lease(card, all, from, to, &found))
		return ofd_lock(card, F_OFD_GETLK, F_WRLCK, all, &length, &found) ? PRESENCE_LAPSED : PRESENCE_NO_LEASE;
	enum presence_lets lets = found & LEASE_LETS;
	if (lets == PRESENCE_LETS_NOBODY)
		return PRESENCE_LEASED;
	to = (now + PRESENCE_LONG) / PRESENCE_PLACE;
	bool is_long = !find_lease(card, all, from, to, &found);
	if (lets == PRESENCE_LETS_ALL)
		return is_long ? PRESENCE_OPEN_LONG : PRESENCE_OPEN;
	return is_long ? PRESENCE_LEASED_LONG : PRESENCE_LEASED;
}

bool presence_is_before_others(void)
{
	uint64_t where;

	for (struct card *card = cards; card < cards + card_count; card++)
		if (is_locked(card->at, card->at + own, &where))
			return false;
	return true;
}

/* The kernel returns some lock in the range. Each further question halves the locks before it, about. */
static bool find_earliest(const struct card *card, uint64_t to, uint64_t *where)
{
	if (!is_locked(queue_of(card), to, where))
		return false;
	while (is_locked(queue_of(card), *where, where))
		;
	return true;
}

unsigned int presence_earliest_before(uint64_t time, uint64_t *where)
{
	uint64_t later;

	for (struct card *card = cards; card < cards + card_count; card++)
		if (find_earliest(card, queue_of(card) + byte_of(time), where))
			return is_locked(*where + 1, queue_of(card) + byte_of(time), &later) ? 2 : 1;
	return 0;
}

/* Processes with places nearby have different bits, so that few are woken in vain. */
static uint32_t bit_of(uint64_t byte)
{
	return (uint32_t)1 << byte % 32;
}

static void note_refused_waits(void)
{
	usage_waits_refused();
	log_once(LOG_WARNING,
		 "futex FUTEX_WAIT_BITSET is refused (a seccomp profile or a sandbox); this container looks twice in "
		 "a millisecond whether it is next");
}

/* ---- a flood of waiters: the kernel goes over all that wait on the word, under a lock, at each wake-up ---- */

static bool is_unwoken(const struct card *card)
{
	uint64_t until = __atomic_load_n(&card->unwoken_until, __ATOMIC_RELAXED);

	return !card->word || (until && clock_now() < until);
}

static void note_waiters(struct card *card)
{
	__atomic_store_n(&card->slow_waits, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&card->slow_wakes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&card->unwoken_until, clock_now() + SLOW_FOR, __ATOMIC_RELAXED);
	log_once(LOG_WARNING,
		 "futex FUTEX_WAKE_BITSET on %s: a container of this card has very many threads that wait there; for a "
		 "minute at a time this container wakes nobody, and looks twice in a millisecond whether it is next",
		 card->path);
}

static void note_wait_time(struct card *card, unsigned int *count, uint64_t taken)
{
	unsigned int slow = __atomic_load_n(count, __ATOMIC_RELAXED);

	slow = taken > SLOW_WAIT ? slow + 1 : slow - (slow > 0);
	__atomic_store_n(count, slow, __ATOMIC_RELAXED);
	if (slow >= MOST_SLOW_WAITS)
		note_waiters(card);
}

void presence_await(uint64_t where)
{
	__atomic_store_n(&awaited, (unsigned int)(card_of(where) - cards), __ATOMIC_RELAXED);
}

void presence_wait(uint64_t time, uint64_t until)
{
	struct card *card = &cards[__atomic_load_n(&awaited, __ATOMIC_RELAXED)];

	if (is_unwoken(card)) {
		clock_sleep_until(bounds_min(until, clock_now() + UNWOKEN));
		return;
	}
	uint64_t began = clock_thread_time();
	clock_wait_bits(card->word, *card->word, bit_of(byte_of(time)), until);
	note_wait_time(card, &card->slow_waits, clock_thread_time() - began);
	if (clock_waits_are_refused())
		note_refused_waits();
}

static void wake(struct card *card, uint32_t bit)
{
	uint64_t began = clock_thread_time();

	if (clock_wake_bits(card->word, bit, MOST_WOKEN) == MOST_WOKEN)
		note_waiters(card);
	else
		note_wait_time(card, &card->slow_wakes, clock_thread_time() - began);
}

void presence_wake_next(void)
{
	uint64_t where;

	for (struct card *card = cards; card < cards + card_count; card++)
		if (!is_unwoken(card) && find_earliest(card, queue_of(card) + OWN_MASK + 1, &where))
			wake(card, bit_of(where - queue_of(card)));
}

void presence_reset(void)
{
	open_again(); /* the child shares the parent's open files: a lock through them would be the parent's */
	works.count = places.count = 0;
	pthread_mutex_init(&lock, NULL); /* another thread of the parent may have held it */
}

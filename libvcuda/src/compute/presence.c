/*
 * See compute/presence.h. The offset of a lock has 24 bits for the card, one bit that separates the queue from the
 * work, and 38 bits for the container's byte or for a time.
 */
#include "compute/presence.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bounds.h"
#include "base/log.h"
#include "driver/clock.h"
#include "shared/limits.h"
#include "shared/usage.h"
#include "vgpu_card.h"
#include "vgpu_limits.h"

#define OWN_BITS 38
#define OWN_MASK (((uint64_t)1 << OWN_BITS) - 1)

#define LOOK_EACH NS_PER_S

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

static int file = -1;
static struct stat identity;
static uint32_t *word;
static uint64_t own;   /* the container's byte on each card: the inode of its limits file, unique on the host */
static uint64_t cards[VGPU_LIMITS_MAX_CARDS]; /* the first offset of each */
static unsigned int card_count;
static uint64_t leases[VGPU_LIMITS_MAX_CARDS]; /* the first offset of each card's leases */
static uint64_t leased = UINT64_MAX; /* this process's lease, in the leases of each card; UINT64_MAX: none */
static struct ignored works, places; /* locks of containers at work, and in the queue */
static bool has_seen_range;
static uint32_t is_refused; /* the kernel or a sandbox has no such locks for this process */
static uint32_t may_appear =
	1; /* the file was not looked for, or another container's lease kept it from being opened */
static uint64_t next_look;
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
static void find_card(unsigned int card, const uint8_t uuid[16])
{
	uint64_t hash = hash_of(uuid, 0xcbf29ce484222325u);

	cards[card] = offset_of(hash);
	leases[card] = offset_of(hash_of(uuid, hash));
}

/* fstat() became a symbol of glibc only in version 2.33. */
static bool stat_of(int fd, struct stat *status)
{
	return syscall(SYS_fstat, fd, status) == 0;
}

/* With O_NONBLOCK: a process of another container may hold a lease, for which open(2) would wait 45 s. */
static int open_now(void)
{
	int fd = open(VGPU_PRESENCE_PATH, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 && errno == EWOULDBLOCK)
		__atomic_store_n(&may_appear, 1, __ATOMIC_RELAXED);
	return fd;
}

/* Uses a high descriptor number: some programs rely on low ones. */
static void open_file(void)
{
	int low = open_now();

	if (low < 0)
		return;
	file = fcntl(low, F_DUPFD_CLOEXEC, HIGH_NUMBER);
	if (file < 0)
		file = low;
	else
		close(low);
}

/* Maps an open file of its own: a mapping keeps the locks of its open file after close(2), and in a child. */
static void map_word(void)
{
	int other = open_now();

	if (other < 0)
		return;
	void *address = mmap(NULL, sizeof(*word), PROT_READ, MAP_SHARED, other, 0);
	if (address != MAP_FAILED)
		__atomic_store_n(&word, address,
				 __ATOMIC_RELEASE); /* the rest is set: threads use it without the lock */
	close(other);
}

static bool is_ours(void)
{
	struct stat now;

	return file >= 0 && stat_of(file, &now) && now.st_dev == identity.st_dev && now.st_ino == identity.st_ino;
}

bool presence_is_kept(void)
{
	if (is_ours())
		return true;
	leased = UINT64_MAX;
	file = -1; /* a daemon closes descriptors that it did not open; the number may be another file's now */
	open_file();
	return false;
}

static uint64_t queue_of(unsigned int card)
{
	return cards[card] + OWN_MASK + 1;
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
		 VGPU_PRESENCE_PATH, strerror(error));
}

static bool ofd_lock(int command, short type, uint64_t from, uint64_t *length, uint64_t *where)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)*length};

	if (fcntl(file, command, &lock) != 0) {
		note_error(errno);
		return false;
	}
	if (lock.l_type == F_UNLCK)
		return false;
	*where = bounds_max(from, (uint64_t)lock.l_start);
	*length = (uint64_t)lock.l_len;
	return true;
}

static void set(short type, uint64_t byte)
{
	uint64_t where, length = 1;

	(void)ofd_lock(F_OFD_SETLK, type, byte, &length, &where);
}

/* Takes and drops a lock that nobody reads, and looks for it, through this process's own open file. */
static bool has_locks(void)
{
	uint64_t where, length = 1;

	set(F_RDLCK, leases[0] + LEASE_TIME_MASK);
	(void)ofd_lock(F_OFD_GETLK, F_WRLCK, leases[0] + LEASE_TIME_MASK, &length, &where);
	set(F_UNLCK, leases[0] + LEASE_TIME_MASK);
	return !__atomic_load_n(&is_refused, __ATOMIC_RELAXED);
}

static void find_files(void)
{
	uint8_t uuids[VGPU_LIMITS_MAX_CARDS][16];
	struct stat limits;

	int fd = open(VGPU_LIMITS_PATH, O_PATH | O_CLOEXEC);
	bool is_known = fd >= 0 && stat_of(fd, &limits);
	if (fd >= 0)
		close(fd);
	if (!is_known)
		return;
	if (file < 0)
		open_file();
	if (file < 0)
		return;
	own = limits.st_ino & OWN_MASK;
	card_count = limits_list(uuids, VGPU_LIMITS_MAX_CARDS);
	for (unsigned int i = 0; i < card_count; i++)
		find_card(i, uuids[i]);
	if (stat_of(file, &identity) && identity.st_size >= (off_t)sizeof(*word) && has_locks())
		map_word();
}

static void look(void)
{
	uint64_t now = clock_now();

	if (__atomic_load_n(&word, __ATOMIC_RELAXED) || now < next_look)
		return;
	next_look = now + LOOK_EACH;
	__atomic_store_n(&may_appear, 0, __ATOMIC_RELAXED);
	find_files();
	if (__atomic_load_n(&may_appear, __ATOMIC_RELAXED))
		log_once(LOG_WARNING,
			 "%s: another container has a lease on it; until that ends, containers of this card "
			 "do not take turns with this one",
			 VGPU_PRESENCE_PATH);
}

bool presence_is_available(void)
{
	if (__atomic_load_n(&word, __ATOMIC_ACQUIRE))
		return !__atomic_load_n(&is_refused, __ATOMIC_RELAXED);
	if (!__atomic_load_n(&may_appear, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&lock);
	look();
	pthread_mutex_unlock(&lock);
	return __atomic_load_n(&word, __ATOMIC_RELAXED);
}

/* Whether another process holds a lock in the range. libvcuda locks single bytes: a longer lock is a forged one. */
static bool is_range_locked(uint64_t from, uint64_t to, uint64_t *where)
{
	uint64_t length = to - from;

	if (from >= to || !ofd_lock(F_OFD_GETLK, F_WRLCK, from, &length, where))
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
	for (unsigned int i = 0; i < card_count; i++)
		set(F_RDLCK, cards[i] + own);
}

void presence_drop(void)
{
	for (unsigned int i = 0; i < card_count && is_ours(); i++)
		set(F_UNLCK, cards[i] + own);
}

bool presence_of_others(uint64_t *where)
{
	for (unsigned int i = 0; i < card_count; i++)
		if (is_locked(cards[i], cards[i] + own, where) || is_locked(cards[i] + own + 1, queue_of(i), where))
			return true;
	return false;
}

/* The kernel returns some lock in the range, not the first one. */
static unsigned int list_locked(uint64_t from, uint64_t to, uint64_t *where, unsigned int count)
{
	uint64_t found;

	if (count == PRESENCE_LISTED || !is_locked(from, to, &found))
		return count;
	where[count] = found;
	return list_locked(found + 1, to, where, list_locked(from, found, where, count + 1));
}

unsigned int presence_list_others(uint64_t where[PRESENCE_LISTED])
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < card_count; i++) {
		count = list_locked(cards[i], cards[i] + own, where, count);
		count = list_locked(cards[i] + own + 1, queue_of(i), where, count);
	}
	return count;
}

static uint64_t byte_of(uint64_t time)
{
	return time / PRESENCE_PLACE & OWN_MASK;
}

void presence_queue(uint64_t time)
{
	for (unsigned int i = 0; i < card_count; i++)
		set(F_RDLCK, queue_of(i) + byte_of(time));
}

void presence_unqueue(uint64_t time)
{
	for (unsigned int i = 0; i < card_count && is_ours(); i++)
		set(F_UNLCK, queue_of(i) + byte_of(time));
}

bool presence_waiting_before(uint64_t time, uint64_t *where)
{
	uint64_t length = time == UINT64_MAX ? OWN_MASK + 1 : byte_of(time);

	for (unsigned int i = 0; i < card_count; i++)
		if (is_locked(queue_of(i), queue_of(i) + length, where))
			return true;
	return false;
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

static void set_leases(short type, uint64_t lease)
{
	for (unsigned int i = 0; lease != UINT64_MAX && i < card_count; i++)
		set(type, leases[i] + lease);
}

void presence_lease(uint64_t until, enum presence_lets lets)
{
	uint64_t time = until / PRESENCE_PLACE & LEASE_TIME_MASK & ~LEASE_LETS;
	uint64_t lease = first_lease(own) | time | lets, before = leased;

	if (lease == before)
		return;
	leased = lease;
	set_leases(F_RDLCK, lease);
	set_leases(F_UNLCK, before);
}

void presence_end_lease(void)
{
	uint64_t before = leased;

	leased = UINT64_MAX;
	if (is_ours())
		set_leases(F_UNLCK, before);
}

/* Whether a lease in [from, to) of the container's leases is held. The times wrap around. */
static bool find_lease(uint64_t all, uint64_t from, uint64_t to, uint64_t *where)
{
	from &= LEASE_TIME_MASK;
	to &= LEASE_TIME_MASK;
	uint64_t length = (from < to ? to : LEASE_TIME_MASK + 1) - from;
	if (ofd_lock(F_OFD_GETLK, F_WRLCK, all + from, &length, where))
		return true;
	length = to;
	return from > to && to && ofd_lock(F_OFD_GETLK, F_WRLCK, all, &length, where);
}

enum presence_lease presence_lease_of(uint64_t where, uint64_t now)
{
	uint64_t all = 0, from = (now - LEASE_GRACE) / PRESENCE_PLACE,
		 to = (now + PRESENCE_LEASE_MOST) / PRESENCE_PLACE, found;
	uint64_t length = LEASE_TIME_MASK + 1;

	for (unsigned int i = 0; i < card_count; i++)
		if (where >= cards[i] && where < queue_of(i))
			all = leases[i] + first_lease(where - cards[i]);
	if (!all || !ofd_lock(F_OFD_GETLK, F_WRLCK, all, &length, &found))
		return PRESENCE_NO_LEASE;
	if (!find_lease(all, from, to, &found))
		return PRESENCE_LAPSED;
	enum presence_lets lets = found & LEASE_LETS;
	if (lets == PRESENCE_LETS_NOBODY)
		return PRESENCE_LEASED;
	to = (now + PRESENCE_LONG) / PRESENCE_PLACE;
	bool is_long = !find_lease(all, from, to, &found);
	if (lets == PRESENCE_LETS_ALL)
		return is_long ? PRESENCE_OPEN_LONG : PRESENCE_OPEN;
	return is_long ? PRESENCE_LEASED_LONG : PRESENCE_LEASED;
}

bool presence_is_before_others(void)
{
	uint64_t where;

	for (unsigned int i = 0; i < card_count; i++)
		if (is_locked(cards[i], cards[i] + own, &where))
			return false;
	return true;
}

/* The kernel returns some lock in the range. Each further question halves the locks before it, about. */
static bool find_earliest(unsigned int card, uint64_t to, uint64_t *where)
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

	for (unsigned int i = 0; i < card_count; i++)
		if (find_earliest(i, queue_of(i) + byte_of(time), where))
			return is_locked(*where + 1, queue_of(i) + byte_of(time), &later) ? 2 : 1;
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

void presence_wait(uint64_t time, uint64_t until)
{
	clock_wait_bits(word, *word, bit_of(byte_of(time)), until);
	if (clock_waits_are_refused())
		note_refused_waits();
}

void presence_wake_next(void)
{
	uint32_t bits = 0;
	uint64_t where;

	for (unsigned int i = 0; i < card_count; i++)
		if (find_earliest(i, queue_of(i) + OWN_MASK + 1, &where))
			bits |= bit_of(where - queue_of(i));
	if (bits)
		clock_wake_bits(word, bits);
}

void presence_reset(void)
{
	/* The child shares the parent's open file: a lock through it would be the parent's. */
	if (file >= 0 && presence_is_kept()) {
		close(file);
		open_file();
	}
	works.count = places.count = 0;
	leased = UINT64_MAX;
	pthread_mutex_init(&lock, NULL); /* another thread of the parent may have held it */
}

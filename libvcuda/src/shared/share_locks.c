/*
 * Implements shared/share_locks.h by open file description locks, as shared/slot_lock.c does. The byte of a lock says
 * what is shared: the id, the card's place and the size. The usage region counts the ends of locks that leave memory to
 * importers alone, or end that, so that a process reads the locks only after one.
 */
#include "shared/share_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/atomics.h"
#include "base/process.h"
#include "shared/usage_region.h"
#include "vgpu_limits.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum {
	SIZE_BITS = 24, /* units of 64 KiB */
	SIZE_SHIFT = 16,
	CARD_BITS = 5,
	BITS = 32 + CARD_BITS + SIZE_BITS,
};

#define SIZE_MASK (((uint64_t)1 << SIZE_BITS) - 1)
#define FIRST(role) ((uint64_t)((role) + 1) << BITS) /* behind the locks of the slots */
#define PER_ID ((uint64_t)1 << (CARD_BITS + SIZE_BITS))

_Static_assert(VGPU_USAGE_SHARES == 16, "the file of an id");
_Static_assert(VGPU_LIMITS_MAX_CARDS <= 1 << CARD_BITS, "cards in a lock's byte");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t seen; /* the changes that `orphans` are of */
static _Atomic uint64_t orphans[VGPU_LIMITS_MAX_CARDS];

static void after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static uint64_t byte_of(const struct share *share)
{
	uint64_t units = (share->size + ((uint64_t)1 << SIZE_SHIFT) - 1) >> SIZE_SHIFT;

	return (uint64_t)share->id * PER_ID + ((uint64_t)share->card << SIZE_BITS) +
	       (units < SIZE_MASK ? units : SIZE_MASK);
}

static struct share share_of(uint64_t byte)
{
	return (struct share){
		.id = (uint32_t)(byte / PER_ID),
		.card = (int)(byte >> SIZE_BITS & ((1 << CARD_BITS) - 1)),
		.size = (byte & SIZE_MASK) << SIZE_SHIFT,
	};
}

static int open_share_file(unsigned int number)
{
	const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
	char path[] = VGPU_USAGE_PATH "0";

	path[sizeof(path) - 2] = "0123456789abcdef"[number];
	int fd = open(path, flags);
	return fd < 0 && errno == ENOENT ? open(VGPU_USAGE_PATH, flags) : fd;
}

static int open_file_of(uint32_t id)
{
	return open_share_file(id >> 28);
}

/* The first byte of some lock in [from, to). */
static bool find_lock(int fd, uint64_t from, uint64_t to, uint64_t *found)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)(to - from)};

	if (from >= to || fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
		return false;
	*found = (uint64_t)lock.l_start < from ? from : (uint64_t)lock.l_start;
	return true;
}

static void report_change(void)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);

	if (usage)
		usage_region_add(&usage->share_changes, 1);
}

/* Some sandboxes end a lock with its descriptor: all of a process's, or none. */
static bool is_kept(uint32_t id, uint64_t byte)
{
	static atomic_bool are_kept;
	uint64_t found;
	int fd = atomic_load(&are_kept) ? -1 : open_file_of(id);

	if (fd >= 0) {
		atomic_store(&are_kept, find_lock(fd, byte, byte + 1, &found));
		close(fd);
	}
	return atomic_load(&are_kept);
}

static bool find_exported(int fd, uint32_t id, struct share *share)
{
	uint64_t from = FIRST(SHARE_EXPORTED) + id * PER_ID, found;

	if (!find_lock(fd, from, from + PER_ID, &found))
		return false;
	*share = share_of(found - FIRST(SHARE_EXPORTED));
	return true;
}

void *share_locks_take(enum share_role role, const struct share *share)
{
	struct vgpu_usage *usage = atomic_load(&usage_region);
	struct flock taken = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
	const size_t size = (size_t)sysconf(_SC_PAGESIZE);
	const uint64_t importers = FIRST(SHARE_IMPORTED) + share->id * PER_ID;
	struct share exported;
	uint64_t found;
	int fd = open_file_of(share->id);

	if (fd < 0)
		return NULL;
	taken.l_start = (off_t)(FIRST(role) + byte_of(share));
	bool is_taken = fcntl(fd, F_OFD_SETLK, &taken) == 0;
	bool is_outlived = is_taken && role == SHARE_IMPORTED && !find_exported(fd, share->id, &exported);
	bool is_vain = is_outlived && !find_lock(fd, importers, importers + PER_ID, &found);
	void *page = is_taken && !is_vain ? mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0) : MAP_FAILED;
	close(fd);
	if (is_outlived) /* somebody may have counted it as held by an importer alone */
		report_change();
	if (page == MAP_FAILED)
		return NULL;
	if (usage && !usage_region_load(&usage->share_changes)) /* from now on there may be such an end */
		(void)usage_region_swap(&usage->share_changes, 0, 1);
	if (madvise(page, size, MADV_DONTFORK) == 0 && is_kept(share->id, (uint64_t)taken.l_start))
		return page;
	munmap(page, size);
	return NULL;
}

static bool is_held(enum share_role role, uint32_t id)
{
	uint64_t from = FIRST(role) + id * PER_ID, found;
	int fd = open_file_of(id);
	bool is_found = fd >= 0 && find_lock(fd, from, from + PER_ID, &found);

	if (fd >= 0)
		close(fd);
	return is_found;
}

void share_locks_drop(void *held, enum share_role role, uint32_t id)
{
	munmap(held, (size_t)sysconf(_SC_PAGESIZE));
	if (role == SHARE_EXPORTED ? is_held(SHARE_IMPORTED, id) : !is_held(SHARE_EXPORTED, id))
		report_change();
}

bool share_locks_find(uint32_t id, struct share *share)
{
	int fd = open_file_of(id);
	bool is_found = fd >= 0 && find_exported(fd, id, share);

	if (fd >= 0)
		close(fd);
	return is_found;
}

/* The kernel returns some lock in the range, not the first one. */
static void sum_orphans(int fd, uint64_t from, uint64_t to, uint64_t sums[VGPU_LIMITS_MAX_CARDS])
{
	struct share exported;
	uint64_t found;

	while (find_lock(fd, from, to, &found)) {
		struct share share = share_of(found - FIRST(SHARE_IMPORTED));
		if (!find_exported(fd, share.id, &exported))
			sums[share.card] += share.size;
		sum_orphans(fd, from, found, sums);
		from = found + 1;
	}
}

static void read_locks(uint64_t changes)
{
	uint64_t sums[VGPU_LIMITS_MAX_CARDS] = {0};

	for (unsigned int number = 0; number < VGPU_USAGE_SHARES; number++) {
		const uint64_t part = ((uint64_t)1 << BITS) / VGPU_USAGE_SHARES;
		const uint64_t from = FIRST(SHARE_IMPORTED) + number * part;
		int fd = open_share_file(number);
		if (fd < 0)
			return;
		sum_orphans(fd, from, from + part, sums);
		close(fd);
	}
	for (unsigned int card = 0; card < VGPU_LIMITS_MAX_CARDS; card++)
		atomic_store(&orphans[card], sums[card]);
	atomic_store(&seen, changes);
}

uint64_t share_locks_orphans(int card, bool fresh)
{
	const struct vgpu_usage *usage = atomic_load(&usage_region);
	uint64_t changes = usage_region_load(&usage->share_changes);

	if (!changes || (changes == atomic_load(&seen) && !(fresh && atomic_load(&orphans[card]))))
		return atomic_load(&orphans[card]);
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	read_locks(usage_region_load(&usage->share_changes));
	pthread_mutex_unlock(&lock);
	return atomic_load(&orphans[card]);
}

/* ---- descriptors: a lock of the descriptor's own open file ---- */

void share_locks_tag(int fd, const struct share *share)
{
	struct flock tag = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};

	tag.l_start = (off_t)(FIRST(SHARE_EXPORTED) + byte_of(share));
	(void)fcntl(fd, F_OFD_SETLK, &tag);
}

/* A line such as `lock:	1: OFDLCK  ADVISORY  READ -1 00:07:4711 2305843009213693952 2305843009213693952`. */
static bool parse_tag(const char *line, struct share *share)
{
	const char *last = strrchr(line, ' ');
	uint64_t byte = last ? strtoull(last, NULL, 10) : 0;

	if (strncmp(line, "lock:", 5) || !strstr(line, "OFDLCK") || byte < FIRST(SHARE_EXPORTED) ||
	    byte >= FIRST(SHARE_IMPORTED))
		return false;
	*share = share_of(byte - FIRST(SHARE_EXPORTED));
	return true;
}

bool share_locks_read_tag(int fd, struct share *share)
{
	char path[PROCESS_PATH], name[24], line[256];
	bool is_found = false;

	snprintf(name, sizeof(name), "fdinfo/%d", fd);
	process_path(path, name);
	FILE *file = fopen(path, "re");
	while (file && !is_found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		is_found = parse_tag(line, share);
	}
	if (file)
		fclose(file);
	return is_found;
}

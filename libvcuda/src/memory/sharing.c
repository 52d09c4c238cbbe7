/*
 * Implements memory/sharing.h. An epoll instance watches exported descriptors: the kernel takes one out when its open file
 * is closed in every process, so it tells whether the memory is still held by a descriptor, without holding it.
 */
#include "memory/sharing.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"
#include "memory/unlisted.h"
#include "shared/share_locks.h"
#include "shared/usage.h"

enum { HIGH_NUMBER = 600 };

#define WATCHED ((uint64_t)0x76677075 << 32) /* the upper half of what the instance keeps for a descriptor */

struct share_hold {
	struct share_hold *next;
	void *lock;  /* NULL: it is refused */
	enum share_role role;
	uint32_t id;
	bool has_descriptor;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int watch = -1;        /* the epoll instance; -1: there is none */
static struct allocation *lingering;
static _Atomic unsigned int lingers;
static _Atomic unsigned int exported_pointers;
static atomic_bool is_unwatched;     /* a descriptor could not be watched */

static void sharing_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	watch = -1; /* the parent's */
	atomic_store(&is_unwatched, false);
	lingering = NULL;
	atomic_store(&lingers, 0);
	atomic_store(&exported_pointers, 0);
}

static void sharing_watch_forks(void)
{
	pthread_atfork(NULL, NULL, sharing_after_fork);
}

/* ---- descriptors ---- */

static int open_watch(void)
{
	int low = epoll_create1(EPOLL_CLOEXEC);
	int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_NUMBER);

	if (high < 0)
		return low;
	close(low);
	return high;
}

static void watch_descriptor(int fd, uint32_t id)
{
	struct epoll_event event = {.events = 0, .data.u64 = WATCHED | id};

	pthread_once(&once, sharing_watch_forks);
	pthread_mutex_lock(&lock);
	if (watch < 0)
		watch = open_watch();
	if (watch < 0 || (epoll_ctl(watch, EPOLL_CTL_ADD, fd, &event) < 0 && errno != EEXIST))
		atomic_store(&is_unwatched, true);
	pthread_mutex_unlock(&lock);
}

static bool is_own_watch(void)
{
	char path[PROCESS_PATH], name[24], target[32] = "";

	snprintf(name, sizeof(name), "fd/%d", watch);
	process_path(path, name);
	return watch >= 0 && readlink(path, target, sizeof(target) - 1) > 0 &&
	       !strcmp(target, "anon_inode:[eventpoll]");
}

/*
 * Whether a descriptor with the id is open in any process. Also true where that cannot be found out: there is no /proc, the
 * program has closed the instance, or the kernel has refused to watch a descriptor.
 */
static bool is_open_somewhere(uint32_t id)
{
	char path[PROCESS_PATH], name[24], line[256], wanted[24];
	bool is_open = false;

	if (atomic_load(&is_unwatched) || !is_own_watch())
		return true;
	snprintf(wanted, sizeof(wanted), "%llx", (unsigned long long)(WATCHED | id));
	snprintf(name, sizeof(name), "fdinfo/%d", watch);
	process_path(path, name);
	FILE *file = fopen(path, "re");
	if (!file)
		return true;
	while (!is_open && fgets(line, sizeof(line), file))
		is_open = strstr(line, wanted);
	fclose(file);
	return is_open;
}

/* ---- the exporter ---- */

static uint32_t mixed(uint64_t a, uint64_t b)
{
	uint64_t mixture = (a ^ (b * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;

	return (uint32_t)(mixture >> 32) | 1;
}

static uint32_t new_id(const struct allocation *entry)
{
	static _Atomic uint32_t count;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return mixed((uint64_t)now.tv_nsec << 32 | (uint32_t)getpid(),
		     entry->serial << 32 | atomic_fetch_add(&count, 1));
}

static uint32_t id_of(const void *bytes)
{
	uint64_t words[SHARED_BYTES / sizeof(uint64_t)];
	uint32_t id = 0;

	memcpy(words, bytes, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		id = mixed(words[i] + i, id);
	return id;
}

static struct share_hold *hold_share(enum share_role role, const struct share *share, bool has_descriptor)
{
	struct share_hold *hold = calloc(1, sizeof(*hold));

	if (hold)
		*hold = (struct share_hold){NULL, share_locks_take(role, share), role, share->id, has_descriptor};
	return hold;
}

void sharing_drop(struct share_hold *shares)
{
	while (shares) {
		struct share_hold *next = shares->next;
		if (shares->lock)
			share_locks_drop(shares->lock, shares->role, shares->id);
		free(shares);
		shares = next;
	}
}

static bool has_id(const struct share_hold *shares, uint32_t id)
{
	for (; shares; shares = shares->next)
		if (shares->id == id)
			return true;
	return false;
}

/* Called under the lock of the entry's shard. */
static bool add_hold(struct allocation *entry, void *hold)
{
	struct share_hold *added = hold;

	if (has_id(entry->shares, added->id))
		return false;
	added->next = entry->shares;
	entry->shares = added;
	if (added->has_descriptor)
		entry->share_id = added->id;
	return true;
}

static void export_entry(const struct allocation *entry, uint32_t id, bool has_descriptor)
{
	const struct share share = {id, entry->card, entry->size};
	struct share_hold *hold = hold_share(SHARE_EXPORTED, &share, has_descriptor);

	if (hold && !allocations_change(entry->kind, entry->key, add_hold, hold))
		sharing_drop(hold);
}

void sharing_export_descriptor(enum allocation_kind kind, uint64_t key, int fd)
{
	struct allocation entry;

	if (!allocations_find(kind, key, &entry) || entry.card == USAGE_NO_CARD)
		return;
	const struct share share = {entry.share_id ? entry.share_id : new_id(&entry), entry.card, entry.size};
	share_locks_tag(fd, &share);
	watch_descriptor(fd, share.id);
	if (!entry.share_id)
		export_entry(&entry, share.id, true);
}

void sharing_export_bytes(enum allocation_kind kind, uint64_t key, const void *bytes)
{
	struct allocation entry;

	if (allocations_find(kind, key, &entry) && entry.card != USAGE_NO_CARD)
		export_entry(&entry, id_of(bytes), false);
}

void sharing_export_pointer(CUdeviceptr pointer, int card, uint64_t size, const void *bytes)
{
	const struct share share = {id_of(bytes), card, size};
	struct allocation *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return;
	*entry = (struct allocation){.kind = EXPORTED_POINTER, .key = pointer, .card = USAGE_NO_CARD};
	entry->shares = hold_share(SHARE_EXPORTED, &share, false);
	atomic_fetch_add(&exported_pointers, 1);
	struct allocation *displaced = allocations_put(entry); /* the same memory, exported before */
	if (displaced) {
		atomic_fetch_sub(&exported_pointers, 1);
		sharing_drop(displaced->shares);
	}
	free(displaced);
}

void sharing_pointer_freed(CUdeviceptr pointer)
{
	struct allocation *entry = atomic_load(&exported_pointers) ? allocations_take(EXPORTED_POINTER, pointer) : NULL;

	if (!entry)
		return;
	atomic_fetch_sub(&exported_pointers, 1);
	sharing_drop(entry->shares);
	free(entry);
}

/* Threads that exported the memory at the same time may have made an id each. */
static bool has_open_descriptor(const struct allocation *entry)
{
	bool is_open = false;

	for (const struct share_hold *at = entry->shares; at && !is_open; at = at->next)
		is_open = at->has_descriptor && is_open_somewhere(at->id);
	return is_open;
}

/* Keeps the entry if a descriptor of its memory is open somewhere. */
static bool linger(struct allocation *entry)
{
	if (!has_open_descriptor(entry))
		return false;
	if (!entry->unlisted)
		unlisted_add(entry->card, entry->size);
	entry->unlisted = true;
	pthread_mutex_lock(&lock);
	entry->next = lingering;
	lingering = entry;
	atomic_fetch_add(&lingers, 1);
	pthread_mutex_unlock(&lock);
	return true;
}

void sharing_release(struct allocation *entry)
{
	if (entry->shares && linger(entry))
		return;
	sharing_drop(entry->shares); /* what importers hold beyond that counts for the container */
	if (entry->card != USAGE_NO_CARD)
		usage_release(entry->card, entry->size);
	if (entry->unlisted)
		unlisted_take(entry->card, entry->size);
	if (entry->managed)
		usage_managed(-(int64_t)entry->size);
	free(entry);
}

/* The entries that were kept and whose descriptors are closed now, linked by `next`. */
static struct allocation *take_ended(void)
{
	struct allocation *ended = NULL;

	if (!atomic_load(&lingers))
		return NULL;
	pthread_mutex_lock(&lock);
	for (struct allocation **at = &lingering; *at;) {
		struct allocation *entry = *at;
		if (has_open_descriptor(entry)) {
			at = &entry->next;
			continue;
		}
		*at = entry->next;
		entry->next = ended;
		ended = entry;
		atomic_fetch_sub(&lingers, 1);
	}
	pthread_mutex_unlock(&lock);
	return ended;
}

bool sharing_reclaim(void)
{
	struct allocation *entry = take_ended();
	bool any = entry;

	while (entry) {
		struct allocation *next = entry->next;
		sharing_release(entry);
		entry = next;
	}
	return any;
}

/* ---- the importer ---- */

/* Without the lock nobody would see that this process holds the memory, so it is charged then. */
static struct share_hold *import(const struct share *share)
{
	struct share_hold *hold = hold_share(SHARE_IMPORTED, share, false);

	if (hold && hold->lock)
		return hold;
	sharing_drop(hold);
	return NULL;
}

struct share_hold *sharing_import_descriptor(int fd, uint64_t *size)
{
	struct share share;

	*size = 0;
	if (!share_locks_read_tag(fd, &share))
		return NULL;
	*size = share.size;
	return import(&share);
}

struct share_hold *sharing_import_bytes(const void *bytes)
{
	struct share share;

	return share_locks_find(id_of(bytes), &share) ? import(&share) : NULL;
}

/*
 * Implements shared/usage_region.h. The first process of the container that needs the region creates the file, under a
 * temporary name until it is complete.
 */
#include "shared/usage_region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "shared/usage_slots.h"

struct vgpu_usage *_Atomic usage_region;

/* Fills a new file completely before it gets its name, so that every process that opens the name finds it complete. */
static int fill_region_file(int fd)
{
	const uint64_t identity = VGPU_USAGE_IDENTITY;
	int error = posix_fallocate(fd, 0, sizeof(struct vgpu_usage)); /* else a full tmpfs would cause SIGBUS later */

	if (error)
		return error;
	if (pwrite(fd, &identity, sizeof(identity), 0) != sizeof(identity))
		return errno ? errno : EIO;
	return fchmod(fd, 0666) < 0 ? errno : 0; /* the container's processes share it, whatever their users */
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
	int error = fill_region_file(fd);
	if (!error && link(name, VGPU_USAGE_PATH) < 0 && errno != EEXIST)
		error = errno;
	unlink(name);
	close(fd);
	return error;
}

/* Opens without O_CREAT: fs.protected_regular refuses O_CREAT on another user's file in a sticky directory. */
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

static struct vgpu_usage *map_region_file(int fd)
{
	if (lseek(fd, 0, SEEK_END) != (off_t)sizeof(struct vgpu_usage))
		return NULL;
	void *address = mmap(NULL, sizeof(struct vgpu_usage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (address == MAP_FAILED)
		return NULL;
	struct vgpu_usage *usage = address;
	if (usage_region_load(&usage->identity) == VGPU_USAGE_IDENTITY)
		return usage;
	munmap(address, sizeof(struct vgpu_usage));
	return NULL;
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
	struct vgpu_usage *usage = map_region_file(fd);
	close(fd);
	if (!usage) {
		log_once(LOG_ERROR, "%s: the file is not a usage region of this version; device memory is refused",
			 VGPU_USAGE_PATH);
		return;
	}
	__atomic_fetch_or(&usage->marks, VGPU_USAGE_COUNTS, __ATOMIC_RELAXED);
	atomic_store(&usage_region, usage);
}

struct vgpu_usage *usage_region_or_null(bool create, bool *absent)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	*absent = false;
	if (!atomic_load(&usage_region)) {
		pthread_once(&once, usage_slots_watch_forks);
		pthread_mutex_lock(&usage_slots_lock);
		if (!atomic_load(&usage_region))
			open_region(create, absent);
		pthread_mutex_unlock(&usage_slots_lock);
	}
	return atomic_load(&usage_region);
}

/* ---- cards ---- */

static uint64_t card_key(const uint8_t uuid[16])
{
	uint64_t half[2];

	memcpy(half, uuid, sizeof(half));
	uint64_t key = half[0] ^ (half[1] * 0x9e3779b97f4a7c15u);
	return key ? key : 1;
}

int usage_region_find_card(struct vgpu_usage *usage, const uint8_t uuid[16], bool create)
{
	uint64_t key = card_key(uuid);

	for (int i = 0; i < (int)VGPU_LIMITS_MAX_CARDS; i++) {
		struct vgpu_usage_card *card = &usage->cards[i];
		if (usage_region_load(&card->key) == key)
			return i;
		if (create && usage_region_swap(&card->key, 0, key))
			memcpy(card->uuid, uuid, sizeof(card->uuid));
		if (create && usage_region_load(&card->key) == key)
			return i;
	}
	return USAGE_NO_CARD;
}

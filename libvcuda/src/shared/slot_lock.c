/*
 * Implements shared/slot_lock.h by open file description locks (Linux 3.15) on bytes far behind the region's end. Such
 * a lock ends with the last reference to the open file. A mapping is one; it is not passed on to a forked child.
 */
#include "shared/slot_lock.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vgpu_limits.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define FIRST_BYTE ((off_t)1 << 40) /* of the locks: slot n has the byte n behind it */

static int open_for_lock(void)
{
	return open(VGPU_USAGE_PATH, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

static struct flock lock_of(uint32_t slot)
{
	return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FIRST_BYTE + slot, .l_len = 1};
}

/* Maps a page of the file that no child gets and nobody reads. NULL: it cannot be had. */
static void *hold(int fd, size_t size)
{
	void *page = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);

	if (page == MAP_FAILED)
		return NULL;
	if (madvise(page, size, MADV_DONTFORK) == 0)
		return page;
	munmap(page, size);
	return NULL;
}

static void *held; /* in a forked child: its parent's, until it takes a lock itself */

/* Some sandboxes end the lock with its descriptor, so it is asked for after that. */
bool slot_lock_take(uint32_t slot)
{
	const size_t size = (size_t)sysconf(_SC_PAGESIZE);
	struct flock lock = lock_of(slot);
	int fd = open_for_lock();

	held = NULL;
	if (fd < 0)
		return false;
	void *page = fcntl(fd, F_OFD_SETLK, &lock) == 0 ? hold(fd, size) : NULL;
	close(fd);
	if (!page)
		return false;
	if (!slot_lock_is_free(slot)) {
		held = page;
		return true;
	}
	munmap(page, size);
	return false;
}

void slot_lock_drop(void)
{
	if (held)
		munmap(held, (size_t)sysconf(_SC_PAGESIZE));
	held = NULL;
}

bool slot_lock_is_free(uint32_t slot)
{
	struct flock lock = lock_of(slot);
	int fd = open_for_lock();

	if (fd < 0)
		return false;
	bool is_free = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
	close(fd);
	return is_free;
}

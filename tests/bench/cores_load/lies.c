/*
 * A malicious container: it takes locks on its first presence file that do not correspond to any work, in order to delay its
 * neighbours. It locks `lie_count` ranges of `lie_length` bytes each, `lie_stride` apart, the first at `lie_from`, plus
 * the container's own byte if `lie_own` is set. Every `lie_each` ns all ranges move on by one stride.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "load.h"
#include "vgpu_card.h"
#include "vgpu_limits.h"

#define OWN_MASK (((uint64_t)1 << 38) - 1)

struct load_lie load_lie = {.count = 1, .length = 1, .stride = 1};

uint64_t load_own_byte(void)
{
	struct stat limits;

	LOAD_CHECK(stat(VGPU_LIMITS_PATH, &limits));
	return limits.st_ino & OWN_MASK;
}

int load_open_presence(void)
{
	DIR *directory = opendir(VGPU_PRESENCE_DIR);
	struct dirent *entry = directory ? readdir(directory) : NULL;

	while (entry && entry->d_name[0] == '.')
		entry = readdir(directory);
	int file = entry ? openat(dirfd(directory), entry->d_name, O_RDONLY | O_CLOEXEC) : -1;
	LOAD_CHECK(file < 0);
	closedir(directory);
	return file;
}

static void set(int file, short type, uint64_t from, uint64_t length)
{
	struct flock lock = {.l_type = type, .l_start = (off_t)from, .l_len = (off_t)length};

	LOAD_CHECK(fcntl(file, F_OFD_SETLK, &lock));
}

static void *lie(void *unused)
{
	int file = load_open_presence();
	uint64_t from = load_lie.from + (load_lie.own ? load_own_byte() : 0);

	(void)unused;
	for (;; from += load_lie.stride) {
		for (uint64_t i = 0; i < load_lie.count; i++)
			set(file, F_RDLCK, from + i * load_lie.stride, load_lie.length);
		load_clock->sleep_until(load_lie.each ? load_clock->now() + load_lie.each : VGPU_SIM_NEVER);
		for (uint64_t i = 0; i < load_lie.count; i++)
			set(file, F_UNLCK, from + i * load_lie.stride, load_lie.length);
	}
	return NULL;
}

void load_lies(void)
{
	if (load_lie.from)
		load_thread(lie, NULL);
}

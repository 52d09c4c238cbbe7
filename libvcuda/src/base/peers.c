/* See base/peers.h. */
#include "base/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { CGROUPS = 4096 }; /* bytes of /proc/<pid>/cgroup; a longer file is compared as far as this */

static ssize_t read_cgroups(const char *path, char text[CGROUPS])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	ssize_t length = read(fd, text, CGROUPS);
	close(fd);
	return length;
}

bool peers_is_visible(unsigned int pid)
{
	return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

bool peers_is_member(unsigned int pid)
{
	char path[40], own[CGROUPS], other[CGROUPS];

	if (pid == (unsigned int)getpid())
		return true;
	if (!peers_is_visible(pid))
		return false;
	snprintf(path, sizeof(path), "/proc/%u/cgroup", pid);
	ssize_t length = read_cgroups("/proc/self/cgroup", own);
	return length > 0 && read_cgroups(path, other) == length && !memcmp(own, other, (size_t)length);
}

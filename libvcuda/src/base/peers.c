/* See base/peers.h. */
#include "base/peers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/process.h"

enum {
	CGROUPS = 4096, /* bytes of /proc/<pid>/cgroup; a longer file is compared as far as this */
	THREADS = 16,   /* entries of /proc/<pid>/task that are looked at */
};

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

/* Whether one of the process's threads has these cgroups. Of a main thread that has ended cgroup v1 tells nothing. */
static bool has_thread_in(unsigned int pid, const char *cgroups, ssize_t length)
{
	char path[PROCESS_PATH], other[CGROUPS];
	const struct dirent *entry;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%u/task", pid);
	DIR *tasks = opendir(path);
	for (int looked = 0; tasks && !found && looked < THREADS && (entry = readdir(tasks)); looked++) {
		snprintf(path, sizeof(path), "/proc/%u/task/%.20s/cgroup", pid, entry->d_name);
		found = read_cgroups(path, other) == length && !memcmp(cgroups, other, (size_t)length);
	}
	if (tasks)
		closedir(tasks);
	return found;
}

bool peers_is_member(unsigned int pid)
{
	char path[PROCESS_PATH], own[CGROUPS];

	if (pid == (unsigned int)getpid())
		return true;
	if (!peers_is_visible(pid))
		return false;
	process_path(path, "cgroup");
	ssize_t length = read_cgroups(path, own);
	return length > 0 && has_thread_in(pid, own, length);
}

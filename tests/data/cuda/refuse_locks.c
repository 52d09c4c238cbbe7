/*
 * Preloaded into a program: fcntl(2) refuses locks on presence files, and on no other file, as a sandbox without such
 * locks does. With LOCKS_TAKE_LONG in the environment each such call takes 0.1 ms of CPU time instead, as one does that
 * goes over 10,000 locks of others. With STOP_AT_LOCKS, a seed, the program stops itself (SIGSTOP) before or after one of
 * 10 to 30 such calls that take or drop a lock. The simulator's own locks are let alone: a real driver has none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_presence(int fd)
{
	char link[64], path[4096];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof(path) - 1);
	path[length > 0 ? length : 0] = '\0';
	return strstr(path, "/presence/") != NULL;
}

static void take_long(void)
{
	struct timespec from, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < 100000);
}

static void stop_now_and_then(unsigned int *seed, int command)
{
	static int left = 60; /* not while the program begins */

	if (command != F_OFD_SETLK || __atomic_sub_fetch(&left, 1, __ATOMIC_RELAXED) != 0)
		return;
	__atomic_store_n(&left, 20 + rand_r(seed) % 40, __ATOMIC_RELAXED);
	raise(SIGSTOP);
}

/* Each call counts twice, before and after. */
static int locked(int fd, int command, void *argument, int (*next)(int, int, ...))
{
	static unsigned int seed;

	if (!seed)
		seed = (unsigned int)atoi(getenv("STOP_AT_LOCKS"));
	stop_now_and_then(&seed, command);
	int result = next(fd, command, argument);
	stop_now_and_then(&seed, command);
	return result;
}

int fcntl64(int fd, int command, ...)
{
	int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
	va_list arguments;

	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	if ((command == F_OFD_GETLK || command == F_OFD_SETLK) && is_presence(fd)) {
		if (getenv("STOP_AT_LOCKS"))
			return locked(fd, command, argument, next);
		errno = EPERM;
		if (!getenv("LOCKS_TAKE_LONG"))
			return -1;
		take_long();
	}
	return next(fd, command, argument);
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

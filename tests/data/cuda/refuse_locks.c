/*
 * Preloaded into a program: fcntl(2) refuses locks on the presence file, and on no other file, as a sandbox without such
 * locks does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_presence(int fd)
{
	char link[64], path[4096];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof(path));
	return length > 8 && memcmp(path + length - 8, "presence", 8) == 0;
}

int fcntl64(int fd, int command, ...)
{
	int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
	va_list arguments;

	va_start(arguments, command);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	if ((command == F_OFD_GETLK || command == F_OFD_SETLK) && is_presence(fd)) {
		errno = EPERM;
		return -1;
	}
	return next(fd, command, argument);
}

int fcntl(int fd, int command, ...) __attribute__((alias("fcntl64")));

/*
 * LD_PRELOAD: the program stops itself (SIGSTOP) before or after one of its calls that take or drop a lock between
 * containers, each time after a number of them that VGPU_TEST_STOP_SEED decides.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>

#define F_OFD_SETLK 37

static unsigned int next_random(void)
{
	static _Thread_local unsigned int state;

	if (!state)
		state = (unsigned int)atoi(getenv("VGPU_TEST_STOP_SEED")) * 2654435761u | 1;
	state ^= state << 13;
	state ^= state >> 17;
	return state ^= state << 5;
}

static int locked(const char *name, int fd, int command, void *argument)
{
	static _Thread_local unsigned int left = 60; /* not while the program begins */
	int (*real)(int, int, ...);
	int stops = 0;

	*(void **)&real = dlsym(RTLD_NEXT, name);
	if (command == F_OFD_SETLK && left-- == 0) {
		stops = 1 + (int)(next_random() % 2);
		left = 20 + next_random() % 40;
	}
	if (stops == 1)
		raise(SIGSTOP);
	int result = real(fd, command, argument);
	if (stops == 2)
		raise(SIGSTOP);
	return result;
}

#define LOCKED(name) \
	int name(int fd, int command, ...) \
	{ \
		va_list arguments; \
		va_start(arguments, command); \
		void *argument = va_arg(arguments, void *); \
		va_end(arguments); \
		return locked(#name, fd, command, argument); \
	}

LOCKED(fcntl)
LOCKED(fcntl64)

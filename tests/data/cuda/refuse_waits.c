/*
 * Refuses libvcuda to wait for words of other containers (or, with REFUSE_ALL_WAITS, for any), as a sandbox may that
 * knows no FUTEX_WAIT_BITSET. Says on stderr when a thread tries again without a sleep in between. With WAKES_TAKE_LONG
 * in the environment it refuses nothing, but each wake-up of others takes 0.2 ms of CPU time, as beside 5,000 waiters.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Thread_local bool has_refused;

static bool is_libvcuda(void *caller)
{
	Dl_info where;

	return dladdr(caller, &where) && strstr(where.dli_fname, "/lib/vcuda/");
}

static void take_long(void)
{
	struct timespec from, now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < 200000);
}

long syscall(long number, ...)
{
	static const char again[] = "refuse_waits: again without sleep\n";
	long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"), with[6];
	va_list arguments;

	va_start(arguments, number);
	for (int i = 0; i < 6; i++)
		with[i] = va_arg(arguments, long);
	va_end(arguments);
	bool is_for_others = number == SYS_futex && (uint32_t)with[5] != FUTEX_BITSET_MATCH_ANY;
	if (is_for_others && (int)with[1] == FUTEX_WAKE_BITSET && getenv("WAKES_TAKE_LONG"))
		take_long();
	if (number != SYS_futex || (int)with[1] != FUTEX_WAIT_BITSET || !is_libvcuda(__builtin_return_address(0)) ||
	    getenv("WAKES_TAKE_LONG") || (!is_for_others && !getenv("REFUSE_ALL_WAITS")))
		return next(number, with[0], with[1], with[2], with[3], with[4], with[5]);
	if (has_refused && write(2, again, sizeof(again) - 1) < 0)
		abort();
	has_refused = true;
	errno = ENOSYS;
	return -1;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
	int (*next)(clockid_t, int, const struct timespec *, struct timespec *) = dlsym(RTLD_NEXT, "clock_nanosleep");

	has_refused = false;
	return next(clock, flags, until, left);
}

/* Implements memory/calls.h. All waits are bounded, since the driver may make a thread wait for another one. */
#include "memory/calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "shared/guard.h"

enum {
	PAUSE = 20000,     /* ns between two looks at a counter */
	HALT_PAUSES = 1500,  /* the longest wait for calls under way: 30 ms and more */
	BEGIN_PAUSES = 50000, /* the longest wait for a look: a second and more */
};

static atomic_uint under_way;
static atomic_uint halts;

/* A forked child has no other threads, and the one that forks is in no call. */
static void calls_after_fork(void)
{
	atomic_store(&under_way, 0);
	atomic_store(&halts, 0);
	guard_this_thread.calls = 0;
}

__attribute__((constructor)) static void calls_watch_forks(void)
{
	pthread_atfork(NULL, NULL, calls_after_fork);
}

static bool wait_for_zero(const atomic_uint *count, int pauses)
{
	const struct timespec pause = {.tv_nsec = PAUSE};

	for (; atomic_load(count) && pauses; pauses--)
		nanosleep(&pause, NULL);
	return pauses;
}

static void count_call(void)
{
	atomic_fetch_add(&under_way, 1);
	while (atomic_load(&halts)) {
		atomic_fetch_sub(&under_way, 1);
		bool is_over = wait_for_zero(&halts, BEGIN_PAUSES);
		atomic_fetch_add(&under_way, 1);
		if (!is_over)
			return;
	}
}

void calls_begin(void)
{
	if (!guard_this_thread.calls++)
		count_call();
}

void calls_end(void)
{
	if (!--guard_this_thread.calls)
		atomic_fetch_sub(&under_way, 1);
}

unsigned int calls_step_out(void)
{
	unsigned int depth = guard_this_thread.calls;

	guard_this_thread.calls = 0;
	if (depth)
		atomic_fetch_sub(&under_way, 1);
	return depth;
}

void calls_step_in(unsigned int depth)
{
	if (depth)
		count_call();
	guard_this_thread.calls = depth;
}

void calls_halt(void)
{
	atomic_fetch_add(&halts, 1);
	(void)wait_for_zero(&under_way, HALT_PAUSES);
}

bool calls_go_on(void)
{
	bool is_quiet = !atomic_load(&under_way);

	atomic_fetch_sub(&halts, 1);
	return is_quiet;
}

/* Implements memory/calls.h. All waits are bounded, since the driver may make a thread wait for another one. */
#include "memory/calls.h"

#include <pthread.h>
#include <time.h>

enum {
	PAUSE = 20000,     /* ns between two looks at a counter */
	HALT_PAUSES = 1500,  /* the longest wait for calls under way: 30 ms and more */
	BEGIN_PAUSES = 50000, /* the longest wait for a look: a second and more */
};

atomic_uint calls_halts;
static atomic_uint impatient; /* counts the calls that went on before a look was over */

/* Of the look that is being made. */
static unsigned int impatient_before;
static bool is_halted;

/* A forked child has no other threads, and the one that forks is in no call. */
static void calls_after_fork(void)
{
	atomic_store(&usage_calls, 0);
	atomic_store(&calls_halts, 0);
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

void calls_wait(void)
{
	while (atomic_load(&calls_halts)) {
		atomic_fetch_sub(&usage_calls, 1);
		bool is_over = wait_for_zero(&calls_halts, BEGIN_PAUSES);
		atomic_fetch_add(&usage_calls, 1);
		if (!is_over) {
			atomic_fetch_add(&impatient, 1); /* last: a look that begins meanwhile sees this or the call */
			return;
		}
	}
}

unsigned int calls_step_out(void)
{
	unsigned int depth = guard_this_thread.calls;

	guard_this_thread.calls = 0;
	if (depth)
		atomic_fetch_sub(&usage_calls, 1);
	return depth;
}

void calls_step_in(unsigned int depth)
{
	if (depth)
		calls_count();
	guard_this_thread.calls = depth;
}

void calls_halt(void)
{
	atomic_fetch_add(&calls_halts, 1);
	impatient_before = atomic_load(&impatient);
	is_halted = wait_for_zero(&usage_calls, HALT_PAUSES);
}

bool calls_go_on(void)
{
	bool is_quiet = is_halted && !atomic_load(&usage_calls) && atomic_load(&impatient) == impatient_before;

	atomic_fetch_sub(&calls_halts, 1);
	return is_quiet;
}

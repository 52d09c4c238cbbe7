#include "sim_clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000u

static struct timespec timespec_of(uint64_t time)
{
	return (struct timespec){.tv_sec = (time_t)(time / SECOND), .tv_nsec = (long)(time % SECOND)};
}

uint64_t sim_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

void sim_sleep_until(uint64_t time)
{
	struct timespec until = timespec_of(time);

	while (sim_now() < time)
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void sim_condition_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

void sim_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until)
{
	struct timespec time = timespec_of(until);

	if (until == SIM_NEVER)
		pthread_cond_wait(condition, mutex);
	else
		pthread_cond_timedwait(condition, mutex, &time);
}

void sim_wait_word(uint32_t *word, uint32_t seen, uint64_t until)
{
	struct timespec time = timespec_of(until);

	/* Unlike FUTEX_WAIT this one takes an absolute time. */
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, until == SIM_NEVER ? NULL : &time, NULL,
	        FUTEX_BITSET_MATCH_ANY);
}

void sim_wake_word(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, 0UL, word, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
}

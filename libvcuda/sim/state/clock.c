/*
 * The simulator's clock: reading the time, sleeping, waiting on conditions and on words of shared memory. Each function
 * uses CLOCK_MONOTONIC or the state's virtual clock (state/virtual.c), whichever the state was made with. The callers
 * decide what happens at a given time.
 */
#include "state/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state/virtual.h"

#define SECOND 1000000000u
#define VIRTUAL_DAY_US 1700000000000000u
#define MUCH_NS 50000u /* of charges that the thread has not paid yet */

static _Thread_local uint64_t debt;

static struct timespec timespec_of(uint64_t time)
{
	return (struct timespec){.tv_sec = (time_t)(time / SECOND), .tv_nsec = (long)(time % SECOND)};
}

static uint64_t read_clock(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

uint64_t sim_clock_now(void)
{
	return sim_virtual() ? sim_virtual_now() : read_clock(CLOCK_MONOTONIC);
}

uint64_t sim_clock_realtime_us(void)
{
	return sim_virtual() ? VIRTUAL_DAY_US + sim_virtual_now() / 1000 : read_clock(CLOCK_REALTIME) / 1000;
}

uint64_t sim_clock_stamp_us(uint64_t given)
{
	uint64_t now = sim_clock_realtime_us();

	return sim_virtual() && given > now ? now + given - read_clock(CLOCK_REALTIME) / 1000 : given;
}

void sim_clock_sleep_until(uint64_t time)
{
	struct timespec until = timespec_of(time);

	if (sim_virtual()) {
		sim_virtual_enter();
		if (time > sim_virtual_now())
			sim_virtual_pass(time, 0);
		return;
	}
	while (sim_clock_now() < time)
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void sim_clock_condition_init(pthread_cond_t *condition)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &attributes);
	pthread_condattr_destroy(&attributes);
}

void sim_clock_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until)
{
	struct timespec time = timespec_of(until);

	if (sim_virtual()) {
		bool runs = sim_virtual_runs();
		pthread_mutex_unlock(mutex);
		if (runs)
			sim_virtual_pass(until, sim_virtual_private_key(condition));
		else
			sim_virtual_enter(); /* a signal that came in between counts as a wake-up */
		pthread_mutex_lock(mutex);
	} else if (until == SIM_NEVER) {
		pthread_cond_wait(condition, mutex);
	} else {
		pthread_cond_timedwait(condition, mutex, &time);
	}
}

void sim_clock_signal(pthread_cond_t *condition)
{
	if (sim_virtual())
		sim_virtual_wake(sim_virtual_private_key(condition));
	else
		pthread_cond_broadcast(condition);
}

static void wait_for_word(uint32_t *word, uint32_t seen, uint64_t until)
{
	uint64_t key = sim_virtual_shared_key(word);

	sim_virtual_enter();
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen && sim_virtual_now() < until)
		sim_virtual_pass(until, key);
}

void sim_clock_wait_word(uint32_t *word, uint32_t seen, uint64_t until)
{
	struct timespec time = timespec_of(until);

	if (sim_virtual()) {
		wait_for_word(word, seen, until);
		return;
	}
	/* FUTEX_WAIT_BITSET takes an absolute time; FUTEX_WAIT takes a relative one. */
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, until == SIM_NEVER ? NULL : &time, NULL,
		FUTEX_BITSET_MATCH_ANY);
}

void sim_clock_wake_word(uint32_t *word)
{
	if (sim_virtual()) {
		__atomic_add_fetch(word, 1, __ATOMIC_ACQ_REL);
		sim_virtual_wake(sim_virtual_shared_key(word));
		return;
	}
	syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, 0UL, word, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
}

void sim_clock_pay(uint64_t ns)
{
	if (!sim_virtual())
		return;
	sim_virtual_enter();
	ns += debt;
	debt = 0;
	if (ns)
		sim_virtual_compute(ns);
}

void sim_clock_charge(uint64_t ns)
{
	if (!sim_virtual())
		return;
	debt += ns;
	if (debt >= MUCH_NS)
		sim_clock_pay(0);
}

uint32_t sim_clock_thread_announce(void)
{
	return sim_virtual() ? sim_virtual_announce() : 0;
}

void sim_clock_thread_adopt(uint32_t number)
{
	if (sim_virtual())
		sim_virtual_adopt(number);
}

void sim_clock_thread_withdraw(uint32_t number)
{
	if (sim_virtual())
		sim_virtual_withdraw(number);
}

void sim_clock_enter(void)
{
	if (sim_virtual())
		sim_virtual_enter();
}

/* See driver/clock.h. */
#include "driver/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver/real_library.h"
#include "vgpu_sim_clock.h"

enum { STACK = 256 * 1024 };

#define STEP (500 * NS_PER_US)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct vgpu_sim_clock *simulated; /* NULL: real time */
static bool looked;
static bool is_refused;

static void find(void)
{
	const struct vgpu_sim_clock *clock = real_library_symbol(VGPU_SIM_CLOCK_SYMBOL);

	if (clock && clock->version == VGPU_SIM_CLOCK_VERSION && clock->is_virtual())
		simulated = clock;
	__atomic_store_n(&looked, true, __ATOMIC_RELEASE);
}

static const struct vgpu_sim_clock *virtual_clock(void)
{
	if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) /* every launch gets here */
		pthread_once(&once, find);
	return simulated;
}

static struct timespec timespec_of(uint64_t time)
{
	return (struct timespec){.tv_sec = (time_t)(time / NS_PER_S), .tv_nsec = (long)(time % NS_PER_S)};
}

static uint64_t real_time(clockid_t clock)
{
	struct timespec time = {0};

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

uint64_t clock_now(void)
{
	const struct vgpu_sim_clock *clock = virtual_clock();

	return clock ? clock->now() : real_time(CLOCK_MONOTONIC);
}

uint64_t clock_thread_time(void)
{
	return virtual_clock() ? 0 : real_time(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_until(uint64_t time)
{
	const struct vgpu_sim_clock *clock = virtual_clock();
	struct timespec until = timespec_of(time);

	if (clock)
		clock->sleep_until(time);
	else
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* In small steps, because nobody can wake this thread. */
static void wait_without_futex(uint64_t until)
{
	uint64_t next = clock_now() + STEP;

	__atomic_store_n(&is_refused, true, __ATOMIC_RELAXED);
	clock_sleep_until(until < next ? until : next);
}

bool clock_waits_are_refused(void)
{
	return __atomic_load_n(&is_refused, __ATOMIC_RELAXED);
}

void clock_wait_bits(uint32_t *word, uint32_t seen, uint32_t bits, uint64_t until)
{
	const struct vgpu_sim_clock *clock = virtual_clock();
	struct timespec time = timespec_of(until);

	if (clock)
		clock->wait(word, seen, until);
	else if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, until == UINT64_MAX ? NULL : &time, NULL, bits) !=
			 0 &&
		 errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)
		wait_without_futex(until); /* unlike FUTEX_WAIT it takes an absolute time, of CLOCK_MONOTONIC */
}

unsigned int clock_wake_bits(uint32_t *word, uint32_t bits, unsigned int most)
{
	const struct vgpu_sim_clock *clock = virtual_clock();

	if (clock) {
		clock->wake(word);
		return 0;
	}
	long woken = syscall(SYS_futex, word, FUTEX_WAKE_BITSET, most, NULL, NULL, bits);
	return woken > 0 ? (unsigned int)woken : 0;
}

void clock_wait(uint32_t *word, uint32_t seen, uint64_t until)
{
	clock_wait_bits(word, seen, FUTEX_BITSET_MATCH_ANY, until);
}

void clock_wake(uint32_t *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
	clock_wake_all(word);
}

void clock_wake_all(uint32_t *word)
{
	(void)clock_wake_bits(word, FUTEX_BITSET_MATCH_ANY, INT_MAX);
}

/* ---- threads ---- */

struct start {
	void (*body)(void);
	uint32_t number; /* on the simulator's clock */
};

static void *thread_main(void *argument)
{
	struct start start = *(struct start *)argument;

	free(argument);
	prctl(PR_SET_NAME, "vgpu-cores");
	prctl(PR_SET_TIMERSLACK, 50000ul);
	if (virtual_clock())
		simulated->thread_adopt(start.number);
	start.body();
	return NULL;
}

bool clock_thread(void (*body)(void))
{
	const struct vgpu_sim_clock *clock = virtual_clock();
	pthread_attr_t attributes;
	struct start *start = malloc(sizeof(*start));
	sigset_t all, before;
	pthread_t id;

	if (!start)
		return false;
	*start = (struct start){body, clock ? clock->thread_announce() : 0};
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool created = pthread_create(&id, &attributes, thread_main, start) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (created)
		return true;
	if (clock)
		clock->thread_withdraw(start->number);
	free(start);
	return false;
}

/* ---- lateness ---- */

#define PROMPT (150 * NS_PER_US)
#define LEAST_STEP (20 * NS_PER_US)

static uint64_t late;

/* One wake-up that is very late, as of a process that was stopped, counts no more than one that is three times as late. */
void clock_note_wake(uint64_t until)
{
	uint64_t now = clock_now(), mean = __atomic_load_n(&late, __ATOMIC_RELAXED), most = 2 * mean + LEAST_STEP;

	if (now >= until)
		__atomic_store_n(&late, mean - mean / 8 + (now - until < most ? now - until : most) / 8,
				 __ATOMIC_RELAXED);
}

uint64_t clock_lateness(void)
{
	uint64_t mean = __atomic_load_n(&late, __ATOMIC_RELAXED);

	return mean < PROMPT ? 0 : mean;
}

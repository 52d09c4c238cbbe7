/* See compute/poller.h. */
#include "compute/poller.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"
#include "compute/batch_complete.h"
#include "compute/container_slice.h"
#include "driver/cuda_table.h"
#include "shared/guard.h"

#define ACTIVE_FOR (100 * NS_PER_MS) /* after the last work the poller looks now and then: no launch has to wake it */
#define LOOK_EACH (10 * NS_PER_MS)
#define LATEST_LOOK (5 * NS_PER_MS)
#define SOON (20 * NS_PER_US) /* a look that is so much later is not worth a wake */

static atomic_int state; /* 0: no thread; 1: there is one */
static uint32_t turns;   /* futex: changes when the poller is to look sooner than it would */
static uint64_t sleeps_until; /* UINT64_MAX: it is about to look */
static uint32_t asleep;  /* futex: 1 while the poller sleeps without a deadline */

static void sleep_for_good(void)
{
	__atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
	if (batch_complete_all() == UINT64_MAX) /* no work came meanwhile */
		clock_wait(&asleep, 1, UINT64_MAX);
	__atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
}

/* Not if poller_look_by() was called since `seen` was read. */
static void sleep_until(uint32_t seen, uint64_t until)
{
	__atomic_store_n(&sleeps_until, until, __ATOMIC_SEQ_CST);
	clock_wait(&turns, seen, until);
	clock_note_wake(until);
}

static void poll_until_exit(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* events may be queried while others capture */
	uint64_t active = clock_now();

	if (!guard_enter())
		return;
	(void)REAL(cuThreadExchangeStreamCaptureMode, &mode);
	for (;;) {
		uint32_t seen = __atomic_load_n(&turns, __ATOMIC_SEQ_CST);
		__atomic_store_n(&sleeps_until, UINT64_MAX, __ATOMIC_SEQ_CST);
		uint64_t next = batch_complete_all(), now = clock_now();
		if (next != UINT64_MAX)
			active = now;
		if (now - active > ACTIVE_FOR || (next == UINT64_MAX && container_slice_may_be_awaited()))
			sleep_for_good();
		else
			sleep_until(seen, next == UINT64_MAX ? now + LOOK_EACH : bounds_min(next, now + LATEST_LOOK));
	}
}

void poller_needed(void)
{
	int none = 0;

	if (!atomic_load_explicit(&state, memory_order_relaxed) && atomic_compare_exchange_strong(&state, &none, 1) &&
	    !clock_thread(poll_until_exit))
		log_once(LOG_WARNING,
			 "cannot start a thread for the core share; work is accounted when a later launch waits");
	if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST))
		clock_wake(&asleep);
}

void poller_look_by(uint64_t time)
{
	if (time == UINT64_MAX || __atomic_load_n(&sleeps_until, __ATOMIC_SEQ_CST) <= time + SOON)
		return;
	__atomic_fetch_add(&turns, 1, __ATOMIC_SEQ_CST);
	clock_wake(&turns);
}

void poller_reset(void)
{
	atomic_store(&state, 0);
	asleep = 0;
	sleeps_until = 0;
}

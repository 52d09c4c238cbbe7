/*
 * The calls under way that allocate or free memory of a card. Between the booking and the driver's work, what is booked
 * is not what the card holds, so a look at NVML's figure halts these calls.
 *
 * Belongs here: counting the calls, and halting them. A call costs two atomic additions and takes no lock. Not here: what
 * a look finds (memory/context_overhead.h).
 */
#ifndef VCUDA_CALLS_H
#define VCUDA_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "shared/guard.h"
#include "shared/usage.h"

/*
 * Around all from the booking to the driver's answer, and from the driver's freeing to the release. A call within a call
 * is part of it. calls_begin waits for a look, so the caller has no lock that another call needs.
 */
static inline void calls_begin(void);
static inline void calls_end(void);

/*
 * A call that looks itself, or waits for somebody who does, is none meanwhile: it has nothing booked then, or only memory of a
 * pool, which a look asks what it holds.
 */
unsigned int calls_step_out(void);
void calls_step_in(unsigned int depth);

/*
 * Halts the calls that begin, and waits for those under way. calls_go_on returns whether none was under way from then on:
 * false also for one that has ended meanwhile, since the card may have given it what the look did not see. A call that
 * the driver keeps waiting for a kernel is not waited for. One thread at a time looks.
 */
void calls_halt(void);
bool calls_go_on(void);

/* ---- inline, since each allocation and each free makes these calls ---- */

extern atomic_uint calls_halts;

void calls_wait(void);

static inline void calls_count(void)
{
	atomic_fetch_add(&usage_calls, 1);
	if (__builtin_expect(atomic_load(&calls_halts), 0))
		calls_wait();
}

/* The same for a caller that has the thread's state. */
static inline void calls_begin_thread(struct guard_thread *thread)
{
	if (!thread->calls++)
		calls_count();
}

static inline void calls_end_thread(struct guard_thread *thread)
{
	if (!--thread->calls)
		atomic_fetch_sub(&usage_calls, 1);
}

static inline void calls_begin(void)
{
	calls_begin_thread(&guard_this_thread);
}

static inline void calls_end(void)
{
	calls_end_thread(&guard_this_thread);
}

#endif

/*
 * What is known of each thread, in one place: in a library the address of such a place costs a call, so a launch asks
 * for it once and hands it on.
 */
#ifndef VCUDA_THIS_THREAD_H
#define VCUDA_THIS_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/limits_file.h"

struct core_context;

struct this_thread {
	int inside;           /* a wrapper is at work: what the driver calls now passes straight through */
	CUcontext handle;     /* the context that was current last, */
	struct core_context *context; /* what is known of it, */
	uint32_t generation;  /* and when it was */
};

extern __thread struct this_thread this_thread;

/* See guard_enter. */
static inline bool thread_enter(struct this_thread *thread)
{
	if (thread->inside || limits_state() == LIMITS_ABSENT)
		return false;
	thread->inside++;
	return true;
}

static inline void thread_leave(struct this_thread *thread)
{
	thread->inside--;
}

#endif

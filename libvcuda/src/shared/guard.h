/*
 * The state of each thread: the re-entry guard and the context that was current last.
 *
 * Belongs here: the thread-local variable alone. In a shared library, taking the address of a thread-local variable
 * costs a call. All of the state is therefore in one variable, and a launch takes its address once and passes it on.
 * memory/charge.h has the guard for callers that launch nothing.
 */
#ifndef VCUDA_GUARD_H
#define VCUDA_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/limits_file.h"

struct compute_context;

struct guard_thread {
	int inside;           /* a wrapper is running: calls that the driver makes now pass straight through */
	CUcontext handle;     /* the context that was current last */
	struct compute_context *context; /* the record of that context */
	uint32_t generation;  /* the generation of the records when `context` was looked up */
};

extern __thread struct guard_thread guard_this_thread;

/* The same as guard_enter, for the given thread. */
static inline bool guard_enter_thread(struct guard_thread *thread)
{
	if (thread->inside || limits_state() == LIMITS_ABSENT)
		return false;
	thread->inside++;
	return true;
}

static inline void guard_leave_thread(struct guard_thread *thread)
{
	thread->inside--;
}

#endif

/*
 * The guard of each thread. The driver calls its own exports, and those calls arrive in our wrappers: the guard makes
 * them pass straight through.
 *
 * Belongs here: the thread's state, which is the guard and the context that was current last. In a shared library,
 * taking the address of a thread-local variable costs a call. All of the state is therefore in one variable, and a
 * launch takes its address once and passes it on. Not here: libnvidia-ml's side, which has a guard of its own
 * (hooks/nvml_device.h).
 */
#ifndef VCUDA_GUARD_H
#define VCUDA_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "shared/limits.h"

struct compute_context;

struct guard_thread {
	int inside;           /* a wrapper is running: calls that the driver makes now pass straight through */
	unsigned int calls;   /* calls of this thread that allocate or free (memory/calls.h), one within the other */
	CUcontext handle;     /* the context that was current last */
	struct compute_context *context; /* the record of that context */
	uint32_t generation;  /* the generation of the records when `context` was looked up */
	uint64_t number;      /* see guard_number_of; 0: not yet given */
};

extern __thread struct guard_thread guard_this_thread;

uint64_t guard_number_thread(struct guard_thread *thread);

/* Returns the thread's number, which no other thread ever has: a later one may lie at the same address. Odd, from 3 on. */
static inline uint64_t guard_number_of(struct guard_thread *thread)
{
	return thread->number ? thread->number : guard_number_thread(thread);
}

/* False: the wrapper passes the call straight through, since nothing is limited or the driver itself makes the call. */
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

/* The same, for the calling thread. */
bool guard_enter(void);
void guard_leave(void);

/* Runs `call` with the guard held, unless guard_enter returns false. */
#define GUARDED(call) \
	({ \
		bool entered_ = guard_enter(); \
		CUresult result_ = (call); \
		if (entered_) \
			guard_leave(); \
		result_; \
	})

#endif

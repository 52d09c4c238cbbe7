/* See shared/guard.h. */
#include "shared/guard.h"

__thread struct guard_thread guard_this_thread;

uint64_t guard_number_thread(struct guard_thread *thread)
{
	static uint64_t last = 1;

	thread->number = __atomic_add_fetch(&last, 2, __ATOMIC_RELAXED);
	return thread->number;
}

bool guard_enter(void)
{
	return guard_enter_thread(&guard_this_thread);
}

void guard_leave(void)
{
	guard_leave_thread(&guard_this_thread);
}

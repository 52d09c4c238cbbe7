/* See shared/guard.h. */
#include "shared/guard.h"

__thread struct guard_thread guard_this_thread;

bool guard_enter(void)
{
	return guard_enter_thread(&guard_this_thread);
}

void guard_leave(void)
{
	guard_leave_thread(&guard_this_thread);
}

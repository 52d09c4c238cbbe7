/*
 * A look at a card's figures beside calls that allocate, by memory/calls.h alone: `halted_calls CASE`. It prints whether
 * the look was quiet, 1 or 0. A call is under way and ends after the look has waited for it for as long as it does
 * ("ends"), is under way to the end ("stays"), has ended before ("before"), or begins during the look, is out of
 * patience, and ends before the look does ("impatient").
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/calls.h"

__thread struct guard_thread guard_this_thread;
atomic_uint usage_calls;

static atomic_bool has_begun, may_end;

static void *call(void *unused)
{
	(void)unused;
	calls_begin();
	calls_step_in(calls_step_out()); /* as a look within the call does */
	has_begun = true;
	while (!may_end)
		usleep(1000);
	calls_end();
	return NULL;
}

static void wait_for_begin(void)
{
	while (!has_begun)
		usleep(1000);
}

static void end_call(pthread_t thread)
{
	may_end = true;
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	bool is_impatient = !strcmp(kind, "impatient");
	pthread_t thread;

	if (is_impatient)
		calls_halt();
	pthread_create(&thread, NULL, call, NULL);
	wait_for_begin();
	if (!strcmp(kind, "before"))
		end_call(thread);
	if (!is_impatient)
		calls_halt();
	if (!strcmp(kind, "ends") || is_impatient)
		end_call(thread);
	printf("%d\n", calls_go_on());
	return 0;
}

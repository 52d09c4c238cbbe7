/* See state/realtime.h. */
#include "state/realtime.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PRIORITY 1

static _Thread_local bool stays;

static bool is_wanted(void)
{
	static int wanted = -1;

	if (wanted < 0) {
		const char *value = getenv("VGPU_SIM_REALTIME");
		wanted = value && strcmp(value, "1") == 0;
	}
	return wanted;
}

static void schedule(int policy, int priority)
{
	struct sched_param parameters = {.sched_priority = priority};

	(void)sched_setscheduler(0, policy, &parameters);
}

void sim_realtime_stay(void)
{
	stays = true;
	if (is_wanted())
		schedule(SCHED_FIFO, PRIORITY);
}

bool sim_realtime_stays(void)
{
	return stays;
}

void sim_realtime_begin(void)
{
	if (is_wanted() && !stays)
		schedule(SCHED_FIFO, PRIORITY);
}

void sim_realtime_end(void)
{
	if (is_wanted() && !stays)
		schedule(SCHED_OTHER, 0);
}

void sim_realtime_inherit(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attributes;

	if (!is_wanted() || pthread_mutexattr_init(&attributes) != 0)
		return;
	if (pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0)
		pthread_mutex_init(mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

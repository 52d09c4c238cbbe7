/*
 * Waiting for a condition that no queue brings about: one thread of the process checks the conditions of all waiting
 * streams until they are met (cuda/work/watch.h). cuda/gexec/memop.c and cuda/work/ipc_event.c have the conditions.
 */
#include "cuda/work/watch.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "cuda/work/queue.h"
#include "state/clock.h"
#include "state/realtime.h"

#define SHORTEST_NS 20000u
#define LONGEST_NS 1000000u /* limits of the time between two checks; it grows while nothing happens */

struct watch {
	sim_condition condition;
	void *argument;
	struct sim_moment *moment;
	struct watch *next;
};

static struct watch *watches; /* under sim_driver.lock */
static bool is_running;
static uint32_t number; /* of the thread in virtual time */

static void finish(struct watch *watch)
{
	pthread_mutex_lock(&sim_driver.lock);
	watch->moment->reached = true;
	watch->moment->time = sim_clock_now();
	sim_event_moment_drop(watch->moment);
	sim_engines_wake_all();
	pthread_mutex_unlock(&sim_driver.lock);
	free(watch->argument);
	free(watch);
}

static void put_back(struct watch *list)
{
	pthread_mutex_lock(&sim_driver.lock);
	while (list) {
		struct watch *watch = list;
		list = watch->next;
		watch->next = watches;
		watches = watch;
	}
	pthread_mutex_unlock(&sim_driver.lock);
}

/* The thread that takes the list has it alone. */
static struct watch *take(void)
{
	pthread_mutex_lock(&sim_driver.lock);
	struct watch *list = watches;
	watches = NULL;
	if (!list)
		is_running = false;
	pthread_mutex_unlock(&sim_driver.lock);
	return list;
}

static bool look(struct watch *list)
{
	struct watch *open = NULL;
	bool any = false;

	while (list) {
		struct watch *watch = list;
		list = watch->next;
		if (watch->condition(watch->argument)) {
			finish(watch);
			any = true;
		} else {
			watch->next = open;
			open = watch;
		}
	}
	put_back(open);
	return any;
}

static void *watch_thread(void *argument)
{
	uint64_t fixed = sim_state_header()->value_look_ns, pause = SHORTEST_NS;
	struct watch *list;

	prctl(PR_SET_NAME, "vgpu-sim-watch");
	sim_realtime_stay();
	sim_clock_thread_adopt(number);
	while ((list = take())) {
		pause = look(list) ? SHORTEST_NS : pause < LONGEST_NS / 2 ? pause * 2 : LONGEST_NS;
		sim_clock_sleep_until(sim_clock_now() + (fixed ? fixed : pause));
	}
	return argument;
}

/* Under the lock. The application's own threads must handle its signals. */
static void start(void)
{
	sigset_t all, before;
	pthread_t id;

	if (is_running)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	number = sim_clock_thread_announce();
	is_running = pthread_create(&id, NULL, watch_thread, NULL) == 0;
	if (!is_running)
		sim_clock_thread_withdraw(number);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (is_running)
		pthread_detach(id);
}

/*
 * The stream has reached the wait. If the thread cannot be started, the condition counts as met: early rather than
 * never.
 */
static void arm(void *argument)
{
	struct watch *watch = argument;

	__atomic_fetch_sub(&sim_driver.watches, 1, __ATOMIC_RELAXED);
	if (watch->condition(watch->argument)) {
		finish(watch);
		return;
	}
	pthread_mutex_lock(&sim_driver.lock);
	start();
	bool watched = is_running;
	if (watched) {
		watch->next = watches;
		watches = watch;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (!watched)
		finish(watch);
}

/* The event is used only to bind its moment to the stream's wait. */
static CUresult wait_for(CUstream stream, CUevent event, struct watch *watch)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.function = arm, .argument = watch}};

	watch->moment->references = 2;
	event->moment = watch->moment;
	__atomic_fetch_add(&sim_driver.watches, 1, __ATOMIC_RELAXED);
	CUresult result = sim_queue_submit(stream, &work, false);
	if (result != CUDA_SUCCESS) {
		__atomic_fetch_sub(&sim_driver.watches, 1, __ATOMIC_RELAXED);
		event->moment->references--;
		return result;
	}
	work = (struct sim_work){.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};
	sim_queue_submit(stream, &work, false); /* if this fails, no stream waits; the watch goes on nevertheless */
	return CUDA_SUCCESS;
}

CUresult sim_watch(CUstream stream, sim_condition condition, void *argument)
{
	struct watch *watch = calloc(1, sizeof *watch);
	struct sim_moment *moment = calloc(1, sizeof *moment);
	struct sim_context *context;
	CUresult result = sim_stream_context(stream, &context);
	CUevent event = result == CUDA_SUCCESS ? sim_event_new(context) : NULL;

	if (watch && moment && event) {
		*watch = (struct watch){condition, argument, moment, NULL};
		result = wait_for(stream, event, watch);
	} else {
		free(moment);
		result = result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
	}
	if (event)
		sim_event_destroy(event);
	if (result != CUDA_SUCCESS) {
		free(argument);
		free(watch);
	}
	return result;
}

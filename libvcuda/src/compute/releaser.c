/* See compute/releaser.h. */
#include "compute/releaser.h"

#include <stdatomic.h>

#include "base/log.h"
#include "compute/held.h"
#include "compute/poller.h"
#include "compute/semaphores.h"
#include "compute/throttle.h"

#define LOCK_PATIENCE NS_PER_S
#define LOCK_LOOK (20 * NS_PER_US)

static atomic_int state; /* 0: no thread; 1: there is one */
static uint32_t turns;   /* futex: changes when a launch is held while the thread sleeps */
static uint32_t asleep;

/* A thread that has the lock may be in the driver, and wait there for a release. */
static bool lock_in_time(struct compute_context *context)
{
	uint64_t until = clock_now() + LOCK_PATIENCE;

	while (!contexts_try_lock(&context->lock)) {
		if (clock_now() > until) {
			log_once(LOG_WARNING, "a call of the driver takes a second; work that was held back goes on");
			semaphores_release_context(context);
			return false;
		}
		clock_sleep_until(clock_now() + LOCK_LOOK);
	}
	return true;
}

static bool find_first(struct launch *first)
{
	for (int i = 0; i < MOST_CONTEXTS && atomic_load(&contexts[i]); i++) {
		struct compute_context *context = atomic_load(&contexts[i]);
		if (!LOAD(context->held) || !lock_in_time(context))
			continue;
		bool is_found = batch_first_held(context, first);
		contexts_unlock(&context->lock);
		if (is_found)
			return true;
	}
	return false;
}

/* If the work under way seems to wait for what is held, all of that is released. */
static void release_first(struct launch *first)
{
	bool is_late = false;
	uint64_t began = clock_now(), now = throttle_held(first, began, &is_late);

	if (!lock_in_time(first->context)) /* that thread goes on now */
		contexts_lock(&first->context->lock);
	if (now - began > NS_PER_MS) /* it did not follow work of its own */
		held_note_depth(first->context, now);
	batch_release(first, now);
	if (is_late)
		batch_release_all(first->context);
	held_note_room(first->context, &first->context->slots[first->context->batches[first->batch].slot]);
	contexts_unlock(&first->context->lock);
	poller_needed();
	poller_look_by(LOAD(first->bucket->finish));
}

static void release_until_exit(void)
{
	struct launch first;

	for (;;) {
		if (find_first(&first)) {
			release_first(&first);
			continue;
		}
		uint32_t seen = __atomic_load_n(&turns, __ATOMIC_SEQ_CST);
		__atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
		if (!find_first(&first)) /* nothing came meanwhile */
			clock_wait(&turns, seen, UINT64_MAX);
		__atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
	}
}

void releaser_needed(struct compute_context *context)
{
	int none = 0;

	poller_needed();
	if (!atomic_load_explicit(&state, memory_order_relaxed) && atomic_compare_exchange_strong(&state, &none, 1) &&
	    !clock_thread(release_until_exit)) {
		log_once(LOG_WARNING, "cannot start a thread for the core share; launches wait by themselves");
		atomic_store(&state, 0);
		contexts_lock(&context->lock);
		context->has_no_semaphores = true;
		batch_release_all(context);
		contexts_unlock(&context->lock);
	}
	if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST))
		clock_wake(&turns);
}

void releaser_reset(void)
{
	atomic_store(&state, 0);
	asleep = 0;
}

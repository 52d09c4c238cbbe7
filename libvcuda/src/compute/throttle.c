/* See compute/throttle.h. */
#include "compute/throttle.h"

#include "compute/account.h"
#include "compute/admission.h"
#include "compute/batch_complete.h"
#include "compute/container_slice.h"
#include "compute/held.h"
#include "compute/poller.h"
#include "compute/presence.h"
#include "compute/process_slice.h"
#include "compute/schedule.h"
#include "driver/cuda_table.h"

#define SHORTEST_SLEEP (20 * NS_PER_US)
#define LONGEST_SLEEP (20 * NS_PER_MS)
#define PATIENCE (20 * NS_PER_MS)
#define REAP_AFTER (10 * NS_PER_MS)
#define REAP_EACH (100 * NS_PER_MS)

/* Whether to let the launch through, as debt: kernels may wait for each other, and then no work ends. */
static bool must_let_through(const struct launch *launch, uint64_t since, uint64_t now)
{
	return now - since >= PATIENCE &&
	       (batch_complete_stuck_elsewhere(launch, now) || admission_others_stuck(launch->bucket, now));
}

static uint64_t next_look(uint64_t time, uint64_t now)
{
	return bounds_clamp(time, now + SHORTEST_SLEEP, now + LONGEST_SLEEP);
}

/* *is_late: it was let through. */
static uint64_t wait_for_tokens(struct launch *launch, uint64_t began, uint64_t again, bool *is_late)
{
	struct token_bucket *bucket = launch->bucket;
	uint32_t *word;
	uint64_t now = began, reap = began + REAP_AFTER;

	for (;;) {
		uint64_t next_end = UINT64_MAX;
		word = process_slice_wait(bucket, now);
		uint32_t seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
		if (launch->is_held) {
			poller_look_by(now); /* compute/releaser.h says why not this thread */
		} else {
			next_end = batch_complete_all();
			batch_estimate(launch);
		}
		now = clock_now();
		if (admission_try(launch, now, &again))
			return now;
		*is_late = must_let_through(launch, began, now);
		if (*is_late || schedule_is_unlimited(bucket))
			break;
		if (now > reap) {
			usage_reap();
			reap = now + REAP_EACH;
		}
		bool is_soft = schedule_idle_rate(bucket) > schedule_rate(bucket, now);
		if (next_end < again && (is_soft || process_slice_others_wait(bucket)))
			again = next_end; /* other containers wait for the poller to see it */
		if (container_slice_has_neighbours(bucket) && LOAD(container_slice.queued))
			presence_wait(container_slice.queued, next_look(again, now));
		else
			clock_wait(word, seen, next_look(again, now));
		now = clock_now();
	}
	account_reserve(bucket, launch->estimate, estimates_known(launch->kind), now);
	return now;
}

static uint64_t wait_and_note(struct launch *launch, uint64_t began, uint64_t again, bool *is_late)
{
	uint64_t now = wait_for_tokens(launch, began, again, is_late);

	process_slice_stop_waiting(launch->bucket);
	container_slice_unqueue(launch->bucket);
	usage_waited(launch->bucket->shared.time, now - began);
	return now;
}

uint64_t throttle_held(struct launch *launch, uint64_t now, bool *is_late)
{
	uint64_t again = 0;

	return admission_try(launch, now, &again) ? now : wait_and_note(launch, now, again, is_late);
}

uint64_t throttle_launch(struct launch *launch, uint64_t now)
{
	uint64_t again = 0;
	bool is_late;

	if (container_slice_has_neighbours(launch->bucket)) {
		batch_await_copies(launch);
		now = clock_now();
	}
	if (LOAD(launch->context->held)) {
		if (held_hold(launch, now))
			return now;
		now = clock_now();
	}
	admission_note_pause(launch->bucket, now);
	if (admission_try(launch, now, &again))
		return now;
	batch_close(launch);
	return held_hold(launch, now) ? now : wait_and_note(launch, now, again, &is_late);
}

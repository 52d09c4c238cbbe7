/* See compute/held.h. */
#include "compute/held.h"

#include "compute/container_slice.h"
#include "compute/open_slice.h"
#include "compute/schedule.h"
#include "compute/slice_parameters.h"

#define SHALLOW NS_PER_MS /* in the mean, of what is held when the first of it goes */
#define SHALLOW_FOR (10 * NS_PER_S)
#define ROOM_LOOK (20 * NS_PER_MS)

static uint64_t shallow_until;
static uint32_t room; /* futex: changes when there is room for more, or nothing is held */

/*
 * Only where slices of its own have left the card idle of late: else the threads launch in time, and each semaphore costs
 * the card a look. Not where kernels take times that are hard to tell: who waits for those looks at the card often. Not where
 * threads wake late, as the one that releases does. Not for a soft share, which goes on as soon as work ends. Not on
 * several cards, whose kernels may wait for each other.
 */
static bool suits(const struct launch *launch, uint64_t now)
{
	const struct token_bucket *bucket = launch->bucket;

	return !launch->is_member && !launch->context->has_no_semaphores && !LOAD(launch->context->drains) &&
	       open_slice_needs_work_ahead(now) && now >= LOAD(shallow_until) && LOAD(bucket->unsure) < SLICE_UNSURE &&
	       clock_lateness() <= SLICE_THREADS_LATE && !schedule_idle_rate(bucket) && token_bucket_count() == 1 &&
	       container_slice_has_neighbours(bucket);
}

/* A launch that does not suit waits until nothing is held. No other one is held meanwhile. */
static void drain(struct compute_context *context)
{
	__atomic_fetch_add(&context->drains, 1, __ATOMIC_RELAXED);
	while (LOAD(context->held)) {
		uint32_t seen = __atomic_load_n(&room, __ATOMIC_SEQ_CST);
		if (LOAD(context->held))
			clock_wait(&room, seen, clock_now() + ROOM_LOOK);
	}
	__atomic_fetch_sub(&context->drains, 1, __ATOMIC_RELAXED);
}

bool held_hold(struct launch *launch, uint64_t now)
{
	do {
		uint32_t seen = __atomic_load_n(&room, __ATOMIC_SEQ_CST);
		if (!suits(launch, now))
			break;
		if (batch_hold(launch, now))
			return true;
		if (LOAD(launch->context->held))
			clock_wait(&room, seen, now + ROOM_LOOK);
		now = clock_now();
	} while (LOAD(launch->context->held));
	drain(launch->context);
	return false;
}

void held_drain(CUcontext handle)
{
	struct compute_context *context = contexts_hold(handle);

	if (!context)
		return;
	contexts_unlock(&context->lock);
	drain(context);
}

void held_note_depth(const struct compute_context *context, uint64_t now)
{
	enum { SAMPLES = 16 };
	static uint64_t sum, count;

	sum += bounds_min(context->held_ns, 2 * SHALLOW);
	if (++count < SAMPLES)
		return;
	if (sum < SAMPLES * SHALLOW)
		STORE(shallow_until, now + SHALLOW_FOR);
	sum = count = 0;
}

void held_note_room(const struct compute_context *context)
{
	if (!context->held || (context->held_ns < HELD_MOST / 2 && context->held_launches < HELD_MOST_LAUNCHES / 2 &&
			       context->held < HELD_MOST_BATCHES / 2))
		clock_wake(&room);
}

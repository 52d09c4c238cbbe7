/* See compute/held.h. */
#include "compute/held.h"

#include "compute/admission.h"
#include "compute/container_slice.h"
#include "compute/open_slice.h"
#include "compute/schedule.h"
#include "compute/slice_parameters.h"

#define SHALLOW NS_PER_MS /* in the mean, of what is held when the first of it goes */
#define SHALLOW_FOR (10 * NS_PER_S)
#define SLOW (800 * NS_PER_US) /* in the mean, from a release until the stream goes on; with 1 ms nothing is gained */
#define SLOW_FOR (600 * NS_PER_S)
enum { SAMPLES = 16 };
#define ROOM_LOOK (20 * NS_PER_MS)

static uint64_t none_until;
static uint32_t room; /* futex: changes when there is room for more, or nothing is held */

/* Other processes of the container may work on its other cards, of which this one knows nothing. */
static bool has_several_cards(void)
{
	const struct vgpu_usage_flight *flights;

	return token_bucket_count() > 1 || usage_time_at(1, &flights);
}

/*
 * Beside others only where slices of its own have left the card idle of late, or where it lacks much of its share, as a program
 * does whose threads prepare nothing while they wait: else the threads launch in time, and each semaphore costs the card a look.
 * Not where kernels take times that are hard to tell: who waits for those looks at the card often. Not where threads wake late,
 * as the one that releases does. Not for a soft share, which goes on as soon as work ends. Not on several cards, whose kernels
 * may wait for each other. Not in a thread's own default stream, where nobody else can put a batch's end if the thread has ended
 * meanwhile.
 */
static bool suits(const struct launch *launch, uint64_t now)
{
	const struct token_bucket *bucket = launch->bucket;
	bool helps = container_slice_has_neighbours(bucket)
			     ? open_slice_needs_work_ahead(now) || LOAD(bucket->lag) > (int64_t)SLICE_LAG_HELD
			     : admission_may_launch_far_ahead(bucket, now);

	return helps && batch_can_hold(launch) && !LOAD(launch->context->drains) && now >= LOAD(none_until) &&
	       LOAD(bucket->unsure) < SLICE_UNSURE && clock_lateness() <= SLICE_THREADS_LATE &&
	       !schedule_idle_rate(bucket) && !has_several_cards();
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
	static uint64_t sum, count;

	sum += bounds_min(context->held_ns, 2 * SHALLOW);
	if (++count < SAMPLES)
		return;
	if (sum < SAMPLES * SHALLOW)
		STORE(none_until, bounds_max(LOAD(none_until), now + SHALLOW_FOR));
	sum = count = 0;
}

void held_note_start(uint64_t late, uint64_t now)
{
	static uint64_t sums, counts; /* threads of two contexts may lose a sample */
	uint64_t sum = LOAD(sums) + bounds_min(late, 4 * SLOW), count = LOAD(counts) + 1;
	bool is_slow = sum > SAMPLES * SLOW, is_over = is_slow || count == SAMPLES;

	if (is_slow)
		STORE(none_until, now + SLOW_FOR);
	STORE(sums, is_over ? 0 : sum);
	STORE(counts, is_over ? 0 : count);
}

void held_note_room(const struct compute_context *context, const struct stream_slot *slot)
{
	if (!context->held || (context->held_ns < HELD_MOST / 2 && context->held_launches < HELD_MOST_LAUNCHES / 2 &&
			       slot->held_launches + BATCH_OPERATIONS * slot->held < HELD_MOST_OPERATIONS / 2 &&
			       context->held < HELD_MOST_BATCHES / 2))
		clock_wake(&room);
}

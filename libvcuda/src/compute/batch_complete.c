/* See compute/batch_complete.h. */
#include "compute/batch_complete.h"

#include <string.h>

#include "compute/account.h"
#include "compute/card_clock.h"
#include "compute/change_cost.h"
#include "compute/container_slice.h"
#include "compute/held.h"
#include "compute/process_slice.h"
#include "compute/slice_parameters.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"

#define LATENCY (12 * NS_PER_US)        /* of a launch into an idle stream and of the wait for its end, at most */
#define FORGOTTEN (2 * NS_PER_MS)       /* past its expected end, for an open batch that no thread adds to or ends */
#define EARLIEST_LOOK (50 * NS_PER_US)
#define LATEST_LOOK NS_PER_MS
#define SETTLED (100 * NS_PER_US)       /* after an expected end: one look sees it */
#define OFTEN (150 * NS_PER_US)         /* between two looks, while others may wait for the card */
#define PATIENCE (20 * NS_PER_MS)       /* with kernels on another card: the kernels of a group wait for each other */
#define PATIENCE_HERE NS_PER_S
#define PROMPT (30 * NS_PER_US)         /* a launch, and the event after it, of a thread that was not held up */
#define SURE (3 * NS_PER_US)           /* how much earlier than estimated a batch may end, in the mean */
#define HIDDEN_PART 8 /* a kernel that overlaps longer ones counts with so much of its time, at least */
#define TOGETHER (50 * NS_PER_MS) /* of work that overlaps: what is remembered of it */
#define EXIT_PATIENCE (50 * NS_PER_MS)

static atomic_bool stopped;
static atomic_int completing;

static uint64_t saturating_less(uint64_t from, uint64_t by)
{
	return from > by ? from - by : 0;
}

enum { UNDER_WAY, OVER, LOST };

static int query(CUevent event)
{
	CUresult result = event ? REAL(cuEventQuery, event) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_SUCCESS ? OVER : result == CUDA_ERROR_NOT_READY ? UNDER_WAY : LOST;
}

/* An end event that came long after the last launch, and was reached at once, found a stream that may have been idle. */
static void note_idle_end(struct batch *batch)
{
	if (batch->closed_at < batch->joined_at + PROMPT || batch->ended_at > batch->closed_at + LATENCY)
		return;
	batch->doubtful += batch->closed_at - batch->joined_at;
	batch->idle_times++;
}

/* Notes whether a batch has started and ended. A stream slot's bit in `blocked`: an older batch there has not ended. */
static void look_at_batch(struct compute_context *context, struct batch *batch, uint64_t *blocked, uint64_t now)
{
	uint64_t bit = (uint64_t)1 << batch->slot;

	if (!batch->started && batch->launched_at && !(*blocked & bit) && query(batch->start) == OVER) {
		batch->started = true;
		batch->started_at = card_clock_time_of(context, batch->start, batch->opened_at, now);
		if (batch->launched_at > batch->started_at) /* the stream was idle: the kernel came after the event */
			batch->started_at = batch->launched_at < now ? batch->launched_at : now;
	}
	if (batch->started && batch->state == CLOSED && !batch->ended_at && query(batch->end) == OVER) {
		batch->ended_at = card_clock_time_of(context, batch->end, batch->closed_at, now);
		note_idle_end(batch);
	}
	if (batch->ended_at && batch->ended_at < batch->started_at)
		batch->ended_at = batch->started_at;
	if (!batch->ended_at)
		*blocked |= bit;
}

/*
 * Adds up the idle gaps up to `to` that were noted since it was last called: a gap is noted at its end. One kernel alone has
 * none. Behind the last launch the stream had work: a gap there only says that its kernels took longer than expected.
 */
static void note_gaps_until(const struct compute_context *context, struct batch *batch, uint64_t to)
{
	uint64_t noted = bounds_max(batch->gaps_noted, saturating_less(context->gap_count, GAPS));

	for (uint64_t i = context->gap_count; i > noted && batch->launches > 1; i--) {
		const struct gap *gap = &context->gaps[(i - 1) % GAPS];
		uint64_t until = gap->is_seen ? to : bounds_min(to, batch->joined_at);
		uint64_t begin = bounds_max(gap->from, batch->counted_from), end = bounds_min(gap->to, until);
		if (gap->to <= batch->counted_from)
			break;
		if (begin > end)
			continue;
		*(gap->is_seen ? &batch->gaps : &batch->doubtful) += end - begin;
		batch->idle_times++;
	}
	batch->gaps_noted = context->gap_count;
}

/* Whether no other stream of the process worked for most of its time. */
static bool ran_alone(const struct batch *batch)
{
	uint64_t took = batch->ended_at - batch->started_at;

	return batch->counted == took && batch->overlap <= took / 2;
}

/* Of kernels of several streams that overlap, the part that they took while nobody else worked: at most all. */
static uint64_t part_together(const struct compute_context *context, uint64_t guess)
{
	uint64_t used = context->together.used, estimate = context->together.estimate;

	return used < estimate ? (uint64_t)((double)guess * (double)used / (double)estimate) : guess;
}

/*
 * Returns how much of the interval the container used: the estimate, within two bounds. `raw` ns of the interval were
 * not counted for other work. The upper bound leaves out the times at which the context was seen to be idle. The lower
 * bound also leaves out the times at which it should have been idle, the latency of launches and waits, and the
 * work of other contexts.
 */
static uint64_t own_part(const struct compute_context *context, const struct batch *batch, uint64_t raw)
{
	uint64_t most = saturating_less(raw, batch->gaps);
	/* Another context that always has work takes every other time slice of the hardware. */
	uint64_t change = bounds_max(BATCH_SWITCHES, (batch->is_beside ? 2 : 1) * change_cost(context->bucket));
	uint64_t strange = (batch->is_first || batch->is_beside ? change : 0) + (batch->is_beside ? most / 2 : 0);
	uint64_t least = saturating_less(most, batch->doubtful + batch->idle_times * LATENCY + strange);
	uint64_t guess = batch->estimate;

	/* What is measured beside others says little. Some kernels of a function take less than its mean, others more. */
	if (batch->is_beside && !batch->is_guessed && batch->ended_at) {
		if (ran_alone(batch))
			return guess;
		return bounds_min(part_together(context, guess), batch->ended_at - batch->started_at);
	}
	/*
	 * The first launch of a slice waits for the change of contexts, on some cards for a ms: much for a short one. Its mean
	 * counts, though the interval be shorter: what long ones among its kernels are not charged, the short ones are.
	 */
	bool is_behind_change = batch->is_first && guess < (batch->semaphore ? 2 : 1) * NS_PER_MS;
	if (batch->is_interrupted || (batch->is_beside && !batch->is_guessed))
		least = 0;
	else if (is_behind_change && !batch->is_guessed && ran_alone(batch))
		return bounds_max(guess, saturating_less(least, SLICE_CHANGE_MOST));
	return guess < least ? least : guess > most ? most : guess;
}

/*
 * Where other streams worked too, the batch took its part of the interval: of kernels that overlap, the mean is what they
 * take together. Where the use was only set to the estimate, the interval is just an upper bound.
 */
static void learn(const struct compute_context *context, const struct batch *batch, uint64_t used, uint64_t now)
{
	uint64_t took = batch->ended_at - batch->started_at;
	bool is_alone = ran_alone(batch), is_beside = batch->is_beside;
	bool is_sure = !is_beside && (!batch->is_first || took > SLICE_LONG); /* a change adds little to a long one */
	/* With idle time in it an interval is too long: it says something if it is shorter than the estimate. */
	bool is_clear = is_sure && (is_alone ? !batch->idle_times || took < batch->estimate
					     : !batch->idle_times && container_slice_has_neighbours(context->bucket));
	bool is_certain = is_clear || (is_alone && used > 4 * batch->estimate && !is_beside);

	/* Of rounds that a program polls, idle time shows in the long ones: those without any are the short ones. */
	bool is_clean = is_clear && !batch->idle_times && !context->is_polled;

	if (batch->is_mixed || batch->is_interrupted || (batch->launches > 1 && !is_clean))
		return;
	uint64_t measured = is_beside || batch->took_long ? saturating_less(batch->counted, batch->gaps) : used;
	if (!is_alone)
		measured = is_certain ? bounds_max(measured, took / HIDDEN_PART) : took;
	estimates_add(batch->kind, measured, batch->launches,
		      is_certain                                         ? ESTIMATE_EXACT
		      : is_beside                                        ? ESTIMATE_BESIDE
		      : batch->is_first && batch->is_guessed && is_alone ? ESTIMATE_BOUND
									 : ESTIMATE_AT_MOST,
		      now);
	if (batch->launches == 1)
		account_measured(context->bucket, used);
}

/* Learns what a change of contexts costs, from one kernel whose own time is well known. */
static void learn_change(struct token_bucket *bucket, const struct batch *batch)
{
	bool is_clear = (batch->launches == 1 || batch->semaphore) && batch->was_idle && !batch->is_mixed &&
			!batch->is_interrupted && !batch->is_behind_wait && !batch->is_beside && !batch->is_guessed &&
			estimates_known(batch->kind) && batch->launched_at - batch->opened_at < PROMPT &&
			batch->closed_at < batch->launched_at + PROMPT;
	bool is_sure = batch->estimate * LOAD(bucket->unsure) / 256 < SURE;
	uint64_t expected = batch->launched_at + batch->estimate;

	if (is_clear && is_sure && (batch->is_after_others || !batch->is_first))
		change_cost_measured(bucket, batch->is_first, batch->semaphore,
				     saturating_less(batch->ended_at, expected));
	else if (is_clear && batch->is_first && batch->is_after_others)
		change_cost_guessed(bucket, (int64_t)(batch->ended_at - expected));
}

/* By the card's clock the batch had ended before it was last seen under way: takes back what was counted too much. */
static void count_back(struct compute_context *context, struct batch *batch)
{
	uint64_t over = saturating_less(batch->counted_to, batch->ended_at);

	if (!over || !batch->ended_at)
		return;
	batch->counted = saturating_less(batch->counted, over);
	account_count_back(context->bucket, batch->counted_to, batch->ended_at);
}

/* Kernels of several streams may run side by side. Beside others nobody can see it: that is learned while there are none. */
static void learn_overlap(struct compute_context *context, const struct batch *batch, uint64_t used)
{
	if (batch->is_beside || batch->is_guessed || ran_alone(batch))
		return;
	if (context->together.estimate > TOGETHER) {
		context->together.estimate /= 2;
		context->together.used /= 2;
	}
	context->together.estimate += batch->estimate;
	context->together.used += used;
}

/*
 * An interval hides the work of those that overlap it, and its batch may be charged for less of it: it may have been idle
 * at its end, or copied. Of intervals that overlap, at least all estimates are charged, within their union. Returns what is
 * missing so far.
 */
static uint64_t hidden_part(struct compute_context *context, const struct batch *batch, uint64_t used)
{
	if (batch->is_beside)
		return 0;
	context->stretch.estimate += bounds_min(batch->estimate, batch->ended_at - batch->started_at);
	context->stretch.counted += saturating_less(batch->counted, batch->gaps);
	uint64_t least = bounds_min(context->stretch.estimate, context->stretch.counted);
	uint64_t hidden = saturating_less(least, context->stretch.used + used);
	context->stretch.used += used + hidden;
	return hidden;
}

static void count_use(struct compute_context *context, struct batch *batch, uint64_t now)
{
	uint64_t to = batch->ended_at ? batch->ended_at : now;

	if (batch->started_at > LOAD(context->bucket->counted_until))
		memset(&context->stretch, 0, sizeof(context->stretch));
	uint64_t found = account_uncounted(context->bucket, batch->started_at, to);

	if (!batch->counted)
		batch->counted_from = to - found;
	batch->counted += found;
	if (found)
		batch->counted_to = to;
	count_back(context, batch);
	note_gaps_until(context, batch, to);
	if (container_slice_is_mixed(context->bucket) || (container_slice_is_open(context->bucket) && ran_alone(batch)))
		batch->is_beside = true;
	uint64_t used = own_part(context, batch, batch->counted);
	if (batch->ended_at) {
		uint64_t charged = used + hidden_part(context, batch, used);
		learn_overlap(context, batch, used);
		account_complete(context->bucket, batch->estimate, batch->booked, charged, batch->ended_at, now);
		learn(context, batch, used, now);
		learn_change(context->bucket, batch);
		if (batch->semaphore && batch->was_idle && !batch->is_beside)
			held_note_start(saturating_less(batch->started_at, batch->opened_at), now);
		card_clock_renew_base(context, batch, now);
		batch_note_done(context, batch);
		batch_set_free(context, batch);
	} else if (used > batch->booked) {
		account_book(context->bucket, used - batch->booked, now);
		batch->booked = used;
	}
}

/* Completes a batch with its estimate: nothing will ever report what it used. */
static void write_off(struct compute_context *context, struct batch *batch, uint64_t now)
{
	batch_drop_local_slice(context, batch);
	if (!batch->is_held)
		account_complete(context->bucket, batch->estimate, batch->booked, batch->estimate, now, now);
	batch_set_free(context, batch);
}

static bool is_lost(const struct batch *batch, uint64_t now)
{
	if (batch->state == OPEN)
		return batch->launches && batch->launched_at && now > batch->expected + FORGOTTEN;
	return !batch->ended_at && (query(batch->start) == LOST || query(batch->end) == LOST);
}

/* Inserts in the order of `key`: the union is right only if batches are counted in the order in which they began. */
static void insert(struct batch **list, int count, struct batch *batch, uint64_t (*key)(const struct batch *))
{
	for (; count && key(list[count - 1]) > key(batch); count--)
		list[count] = list[count - 1];
	list[count] = batch;
}

static uint64_t by_order(const struct batch *batch)
{
	return batch->order;
}

static uint64_t by_start(const struct batch *batch)
{
	return batch->started_at;
}

static void complete_ended(struct compute_context *context, uint64_t now)
{
	struct batch **all = context->by_order, **started = context->by_start;
	uint64_t blocked = 0;
	int used = 0, begun = 0;

	container_slice_note_lapse(context->bucket, now);
	for (uint32_t i = 0; i < context->top; i++)
		if (context->batches[i].state != FREE && !context->batches[i].is_held)
			insert(all, used++, &context->batches[i], by_order);
	for (int i = 0; i < used; i++) {
		look_at_batch(context, all[i], &blocked, now);
		if (is_lost(all[i], now))
			write_off(context, all[i], now);
		else if (all[i]->started)
			insert(started, begun++, all[i], by_start);
	}
	for (int i = 0; i < begun; i++) {
		if (started[i]->ended_at && i + 1 < begun)
			started[i]->overlap = saturating_less(started[i]->ended_at, started[i + 1]->started_at);
		count_use(context, started[i], now);
	}
}

/* The batches before it in its stream may have ended sooner than expected. */
static uint64_t expected_end(const struct batch *batch)
{
	uint64_t end = batch->started_at + batch->estimate;

	return batch->started && end < batch->expected ? end : batch->expected;
}

/* Whether only launches of this process wait for work under way to end: that end need not be seen at once. */
static bool waits_alone(const struct token_bucket *bucket)
{
	return container_slice_has_neighbours(bucket) && LOAD(token_bucket_own_flight(bucket)->waiting) &&
	       !process_slice_others_wait(bucket) && !container_slice_is_leaving(bucket) && !LOAD(bucket->borrows_from);
}

static uint64_t next_end(const struct compute_context *context, uint64_t now)
{
	bool settles = waits_alone(context->bucket), is_last = settles && LOAD(context->bucket->is_awaited);
	uint64_t next = is_last ? 0 : UINT64_MAX;

	for (uint32_t i = 0; i < context->top; i++) {
		const struct batch *batch = &context->batches[i];
		if (batch->state == FREE || batch->is_held)
			continue;
		uint64_t end = expected_end(batch) + (batch->state == OPEN ? FORGOTTEN : 0);
		uint64_t late = end < now ? (now - end) / 4 : 0;
		uint64_t look = late ? now + bounds_min(late, LATEST_LOOK) : end + (settles ? SETTLED : 0);
		if (batch->state == CLOSED)
			look = bounds_min(look, now + account_look_each(context->bucket, batch->estimate));
		look = bounds_max(look, now + EARLIEST_LOOK);
		next = is_last ? bounds_max(next, look) : bounds_min(next, look);
	}
	if (!next) /* nothing is under way */
		return UINT64_MAX;
	if (context->under_way > context->held && next > now + OFTEN && container_slice_is_leaving(context->bucket))
		return now + OFTEN;
	return next;
}

static uint64_t complete_in_context(struct compute_context *context)
{
	CUcontext before;
	uint64_t next = UINT64_MAX;

	if (!contexts_try_lock(&context->lock))
		return clock_now() + EARLIEST_LOOK;
	if (context->under_way && context->handle && REAL(cuCtxPushCurrent_v2, context->handle) == CUDA_SUCCESS) {
		uint64_t now = clock_now(), quiet = UINT64_MAX;
		if (batch_looks_for_quiet(context))
			quiet = batch_end_quiet(context, now);
		complete_ended(context, now);
		next = bounds_min(next_end(context, now), quiet);
		(void)REAL(cuCtxPopCurrent_v2, &before);
	}
	contexts_unlock(&context->lock);
	return next;
}

uint64_t batch_complete_all(void)
{
	uint64_t next = UINT64_MAX;
	CUstreamCaptureMode mode = stream_capture_relax(); /* another thread's capture may forbid queries in this one */

	atomic_fetch_add(&completing, 1);
	for (int i = 0; i < MOST_CONTEXTS && !atomic_load(&stopped); i++) {
		struct compute_context *context = atomic_load_explicit(&contexts[i], memory_order_acquire);
		if (!context)
			break;
		next = bounds_min(next, LOAD(context->under_way) ? complete_in_context(context) : UINT64_MAX);
	}
	uint64_t tidy = container_slice_tidy(clock_now());
	atomic_fetch_sub(&completing, 1);
	stream_capture_restore(mode);
	return tidy < next ? tidy : next;
}

/* Whether the batch's context has had no end, and no report of being stuck, for longer than the batch should take. */
static bool is_batch_stuck(const struct compute_context *context, const struct batch *batch, uint64_t least,
			   uint64_t now)
{
	uint64_t since = batch->opened_at > context->moved_at ? batch->opened_at : context->moved_at;

	if (batch->state == FREE || batch->is_held || batch->ended_at)
		return false;
	uint64_t patience = 4 * (batch->estimate + estimates_ns(batch->kind));
	return now > since + (patience > least ? patience : least);
}

static bool runs(const struct compute_context *context)
{
	for (uint32_t i = 0; i < context->top; i++)
		if (context->batches[i].state != FREE && context->batches[i].started && !context->batches[i].ended_at)
			return true;
	return false;
}

/*
 * While nothing runs, a batch behind a wait for the program gets the short patience: the program may be waiting for
 * this very launch, and the batch does not occupy the card.
 */
static bool has_stuck(const struct compute_context *context, const struct stream_slot *own, uint64_t least,
		      uint64_t now)
{
	bool is_idle = least > PATIENCE && !runs(context);

	for (uint32_t i = 0; i < context->top; i++) {
		const struct batch *batch = &context->batches[i];
		if (&context->slots[batch->slot] != own &&
		    is_batch_stuck(context, batch, batch->is_behind_wait && is_idle ? PATIENCE : least, now))
			return true;
	}
	return false;
}

bool batch_complete_stuck_elsewhere(const struct launch *launch, uint64_t now)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct compute_context *context = atomic_load(&contexts[i]);
		if (!context)
			break;
		if (!LOAD(context->under_way) || !contexts_try_lock(&context->lock))
			continue;
		const struct stream_slot *own =
			context == launch->context ? contexts_slot(context, launch->stream_key) : NULL;
		uint64_t least = context->bucket == launch->bucket ? PATIENCE_HERE : PATIENCE;
		bool stuck = has_stuck(context, own, least, now);
		if (stuck)
			context->moved_at = now;
		contexts_unlock(&context->lock);
		if (stuck)
			return true;
	}
	return false;
}

void batch_complete_release_context(struct compute_context *context, bool is_gone)
{
	uint64_t now = clock_now();

	if (!context)
		return;
	for (uint32_t i = 0; is_gone && i < context->top; i++)
		if (context->batches[i].state != FREE)
			write_off(context, &context->batches[i], now);
	if (is_gone) {
		__atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
		atomic_fetch_add(&contexts_generation, 1);
	}
	contexts_unlock(&context->lock);
}

void batch_complete_reset(void)
{
	contexts_reset();
	atomic_store(&completing, 0);
}

void batch_complete_stop(void)
{
	uint64_t until = clock_now() + EXIT_PATIENCE;

	atomic_store(&stopped, true);
	while (atomic_load(&completing) && clock_now() < until)
		clock_sleep_until(clock_now() + 20 * NS_PER_US);
}

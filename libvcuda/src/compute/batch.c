/* See compute/batch.h. This file puts launches into batches and follows the threads that wait for them. */
#include "compute/batch.h"

#include "base/clock.h"
#include "compute/batch_parts.h"
#include "compute/card_clock.h"
#include "compute/poller.h"

/* A batch ends when its launches should take this long. */
#define LONG_ENOUGH NS_PER_MS

/* The time between two samples in a stream: two events cost some 5 us. */
#define SAMPLES_APART (2 * NS_PER_MS)

/* A batch ends where its thread waits for it, if its launches should take at least this long. */
#define WORTH_AN_EVENT (250 * NS_PER_US)

/* A batch ends where its stream is interrupted while other streams work, if its launches should take this long. */
#define WORTH_IT_AMONG_OTHERS (50 * NS_PER_US)

static struct batch *free_batch(struct core_context *context)
{
	for (int i = 0; context->under_way < BATCHES && i < BATCHES; i++)
		if (context->batches[i].state == FREE)
			return &context->batches[i];
	return NULL;
}

void batch_drop_spare(struct core_context *context, struct batch *batch)
{
	if (batch->spare)
		bucket_spare_back(context->bucket, batch->spare);
	batch->spare = 0;
}

/* The caller holds the lock. Other threads read the word without it, as a hint. */
static void count_up(uint32_t *word, int change)
{
	__atomic_store_n(word, *word + (uint32_t)change, __ATOMIC_RELAXED);
}

void batch_set_free(struct core_context *context, struct batch *batch)
{
	if (batch->state == OPEN)
		context->lanes[batch->lane].open = -1;
	batch_drop_spare(context, batch);
	card_put_event(context, batch->start);
	card_put_event(context, batch->end);
	context->moved_at = clock_now();
	batch->state = FREE;
	count_up(&context->under_way, -1);
}

static void open_batch(struct core_context *context, struct lane *lane, struct launch *launch, uint64_t now)
{
	struct bucket *bucket = context->bucket;
	struct batch *batch = free_batch(context);

	CUevent start = batch ? card_record(context, launch->stream) : NULL;
	if (!start)
		return;
	*batch = (struct batch){.state = OPEN, .start = start, .lane = (uint32_t)(lane - context->lanes), .order = ++context->orders,
				.kind = launch->kind, .opened_at = now, .is_behind_wait = lane->waits};
	lane->waits = false;
	if (__atomic_exchange_n(&bucket->fresh, 0, __ATOMIC_RELAXED)) {
		batch->is_unsure = true;
		batch->allowance = SWITCHES;
	}
	if (bucket_is_mixed(bucket)) {
		batch->is_unsure = true;
		batch->allowance = SLICE + SWITCHES;
	}
	bucket_wants(bucket, now);
	count_up(&context->under_way, 1);
	lane->open = (int32_t)(batch - context->batches);
	launch->opened = true;
	/* The next batch begins where this one ends, which is more certain. */
	launch->closes = batch->allowance == SWITCHES;
}

/* Whether the kernel is to be measured alone: its last measurement is too old. */
static bool wants_sample(const struct lane *lane, const struct launch *launch, uint64_t now)
{
	return !estimates_known(launch->kind) ||
	       (now - lane->sampled_at >= SAMPLES_APART && estimates_stale(launch->kind, now));
}

static void end_batch(struct core_context *context, struct batch *batch, CUstream stream, uint64_t now)
{
	context->lanes[batch->lane].open = -1;
	batch_drop_spare(context, batch);
	batch->end = card_record(context, stream);
	batch->state = CLOSED;
	batch->closed_at = now;
}

/*
 * Notes for how long the context was idle before the launch. That time is not the container's use. The context was idle
 * since a thread had waited for all of its work or, if none had, since the work should have been done.
 */
static void note_gap(struct core_context *context, struct lane *lane, uint64_t estimate, uint64_t now)
{
	bool is_seen = !context->working && context->dry_since;
	uint64_t since = is_seen ? context->dry_since : context->expected;

	if (context->expected && (is_seen || now > since))
		context->gaps[context->gap_count++ % GAPS] = (struct gap){since, now, is_seen};
	context->expected = (is_seen || context->expected < now ? now : context->expected) + estimate;
	count_up(&context->working, !lane->has_work);
	lane->has_work = true;
}

/* Clears the marks of interruption: another stream has work meanwhile, so the interval is not the stream's alone. */
static void count_interruptions(struct core_context *context)
{
	for (int i = 0; i < BATCHES; i++)
		context->batches[i].is_interrupted = false;
	context->interrupted = 0;
}

static void add_to(struct batch *batch, struct lane *lane, struct launch *launch, uint64_t now)
{
	batch->is_mixed |= launch->kind != batch->kind;
	lane->stream = launch->stream;
	lane->thread = launch->thread;
	batch->launches++;
	batch->estimate += launch->estimate;
	batch->booked += launch->estimate;
	lane->expected = (lane->expected > now ? lane->expected : now) + launch->estimate;
	batch->expected = lane->expected;
	launch->closes |= batch->estimate >= LONG_ENOUGH;
}

bool batches_join_reserved(struct launch *launch, uint64_t now)
{
	struct core_context *context = launch->context;

	enter(&context->lock);
	struct lane *lane = lane_of(context, launch->lane);
	struct batch *batch = lane->open < 0 ? NULL : &context->batches[lane->open];
	bool is_reserved = batch && launch->estimate <= batch->spare && now < batch->spare_until &&
			   !wants_sample(lane, launch, now);
	if (is_reserved && context->interrupted && context->interrupted != lane->key)
		count_interruptions(context);
	if (is_reserved) {
		batch->spare -= launch->estimate;
		launch->batch = lane->open;
		note_gap(context, lane, launch->estimate, now);
		add_to(batch, lane, launch, now);
	}
	leave(&context->lock);
	return is_reserved;
}

static void reserve_more(struct core_context *context, struct batch *batch, uint64_t now)
{
	batch_drop_spare(context, batch);
	batch->spare = bucket_spare(context->bucket, now, &batch->spare_until);
}

void batches_join(struct launch *launch, uint64_t now)
{
	struct core_context *context = launch->context;

	enter(&context->lock);
	struct lane *lane = lane_of(context, launch->lane);
	if (context->interrupted && context->interrupted != lane->key)
		count_interruptions(context);
	struct batch *batch = lane->open < 0 ? NULL : &context->batches[lane->open];
	note_gap(context, lane, launch->estimate, now);
	bool sample = wants_sample(lane, launch, now);
	if (sample)
		lane->sampled_at = now;
	if (batch && sample) {
		end_batch(context, batch, launch->stream, now);
		batch = NULL;
	}
	if (!batch) {
		open_batch(context, lane, launch, now);
		batch = lane->open < 0 ? NULL : &context->batches[lane->open];
	}
	launch->batch = lane->open;
	if (batch) {
		launch->closes |= sample;
		add_to(batch, lane, launch, now);
		if (!launch->closes)
			reserve_more(context, batch, now);
	}
	leave(&context->lock);
}

/* Takes a launch that failed out of its batch. A batch that has no other launch is freed. */
static void undo(struct core_context *context, struct batch *batch, const struct launch *launch)
{
	batch->launches--;
	batch->estimate -= launch->estimate;
	batch->booked -= launch->estimate;
	if (!batch->launches)
		batch_set_free(context, batch);
}

/* The thread was held up after the launch, so its work may have ended long before the event is recorded. */
static void note_delay(struct batch *batch, const struct launch *launch, uint64_t now)
{
	if (launch->may_wait || now <= batch->expected)
		return;
	batch->doubtful += now - batch->expected;
	batch->dry_times++;
}

void batches_joined(struct launch *launch, bool succeeded)
{
	struct core_context *context = launch->context;

	if (succeeded && launch->batch >= 0 && !launch->opened && !launch->closes)
		return;
	if (!succeeded)
		bucket_release(launch->bucket, launch->estimate);
	if (launch->batch < 0) {
		/* There was no batch or event for it: the launch counts with its estimate. */
		if (succeeded)
			bucket_settle(launch->bucket, launch->estimate, launch->estimate, launch->estimate, clock_now());
		return;
	}
	uint64_t now = clock_now();
	enter(&context->lock);
	struct batch *batch = &context->batches[launch->batch];
	if (batch->state == OPEN) {
		if (!succeeded)
			undo(context, batch, launch);
		else if (launch->opened)
			batch->launched_at = launch->may_wait ? batch->opened_at : now;
		if (succeeded && launch->closes) {
			note_delay(batch, launch, now);
			end_batch(context, batch, launch->stream, now);
		}
	}
	leave(&context->lock);
	poller_needed();
}

/* Leaves the streams of other threads alone: those threads may have destroyed them. */
static void close_own(struct core_context *context, struct lane *lane, uint64_t least)
{
	struct batch *batch = lane->open < 0 ? NULL : &context->batches[lane->open];

	if (batch && lane->thread == &this_thread && batch->estimate >= least)
		end_batch(context, batch, lane->stream, clock_now());
}

void batches_close(const struct launch *launch)
{
	struct core_context *context = launch->context;

	enter(&context->lock);
	for (int i = 0; i < LANES; i++)
		close_own(context, &context->lanes[i], 0);
	leave(&context->lock);
}

/* ---- a thread waits for its work; between two such waits a stream is not idle ---- */

void batches_waiting(uint64_t key)
{
	struct core_context *context = atomic_load(&core_contexts[0]) ? batches_context(&this_thread) : NULL;

	if (!context || !__atomic_load_n(&context->under_way, __ATOMIC_RELAXED))
		return;
	enter(&context->lock);
	for (int i = 0; i < LANES; i++)
		if (context->lanes[i].key && (key == ALL_LANES || context->lanes[i].key == key))
			close_own(context, &context->lanes[i], WORTH_AN_EVENT);
	leave(&context->lock);
}

static void note_waited(struct core_context *context, uint64_t key, bool others_wait)
{
	uint64_t now = clock_now();

	for (int i = 0; i < LANES; i++) {
		struct lane *lane = &context->lanes[i];
		if (!lane->has_work || lane->thread != &this_thread || (key != ALL_LANES && lane->key != key))
			continue;
		if (others_wait)
			close_own(context, lane, 0);
		lane->has_work = false;
		count_up(&context->working, -1);
		if (!context->working)
			context->dry_since = now;
	}
}

void batches_waited(uint64_t key)
{
	struct core_context *context = atomic_load(&core_contexts[0]) ? batches_context(&this_thread) : NULL;

	if (!context || !__atomic_load_n(&context->working, __ATOMIC_RELAXED))
		return;
	bool others_wait = bucket_others_wait(context->bucket);
	enter(&context->lock);
	note_waited(context, key, others_wait);
	leave(&context->lock);
	if (others_wait)
		(void)batches_settle();
}

/* Returns the stream's slot and holds the context's lock. NULL: the stream has no slot, and nothing is locked. */
static struct lane *enter_lane(uint64_t key, struct core_context **context)
{
	*context = atomic_load(&core_contexts[0]) ? batches_context(&this_thread) : NULL;
	if (!*context)
		return NULL;
	enter(&(*context)->lock);
	struct lane *lane = lane_of(*context, key);
	if (lane->key == key)
		return lane;
	leave(&(*context)->lock);
	return NULL;
}

/* A batch that is not worth an event goes on. If no other stream has work, its kernels count with their estimates. */
static void interrupt(struct core_context *context, struct lane *lane, CUstream stream, bool waits)
{
	struct batch *batch = &context->batches[lane->open];
	bool is_alone = context->working == 1 && lane->has_work;

	if (waits || batch->estimate >= (is_alone ? WORTH_AN_EVENT : WORTH_IT_AMONG_OTHERS)) {
		end_batch(context, batch, stream, clock_now());
	} else if (is_alone) {
		batch->is_interrupted = true;
		context->interrupted = lane->key;
	}
}

void batches_interrupt(uint64_t key, CUstream stream, bool waits)
{
	struct core_context *context;
	struct lane *lane = enter_lane(key, &context);

	if (!lane)
		return;
	if (lane->open >= 0)
		interrupt(context, lane, stream, waits);
	lane->waits |= waits;
	leave(&context->lock);
}

void batches_forget(uint64_t key, CUstream stream)
{
	struct core_context *context;
	struct lane *lane = enter_lane(key, &context);

	if (!lane)
		return;
	if (lane->open >= 0)
		end_batch(context, &context->batches[lane->open], stream, clock_now());
	leave(&context->lock);
}

/* See compute/batch.h. This file puts launches into batches and follows the threads that wait for them. */
#include "compute/batch.h"

#include "compute/account.h"
#include "compute/admission.h"
#include "compute/card_clock.h"
#include "compute/container_slice.h"
#include "compute/process_slice.h"
#include "compute/semaphores.h"
#include "compute/slice_parameters.h"
#include "driver/cuda_table.h"

#define COPY_PATIENCE (50 * NS_PER_MS) /* what is before the launch may wait for the program */

#define LONG_CALL (200 * NS_PER_US) /* a launch takes some 5 us */

/* A batch ends when its launches should take this long. */
#define LONG_ENOUGH NS_PER_MS

/* The time between two samples in a stream: two events cost some 5 us. */
#define SAMPLES_APART (2 * NS_PER_MS)

/* A batch ends where its thread waits for it, if its launches should take at least this long. */
#define WORTH_AN_EVENT (250 * NS_PER_US)

static struct batch *free_batch(struct compute_context *context)
{
	uint32_t i = 0;

	while (i < context->top && context->batches[i].state != FREE)
		i++;
	return i < BATCHES ? &context->batches[i] : NULL;
}

void batch_drop_local_slice(struct compute_context *context, struct batch *batch)
{
	if (batch->local_slice)
		account_release(context->bucket, batch->local_slice);
	batch->local_slice = 0;
}

/* The caller holds the lock. Other threads read the word without it, as a hint. */
static void count_up(uint32_t *word, int change)
{
	__atomic_store_n(word, *word + (uint32_t)change, __ATOMIC_RELAXED);
}

/*
 * A value releases all that wait for it or a lower one. Waits without work behind them, as of launches that failed, end with
 * the next one that has some, or with the last.
 */
static void end_hold(struct compute_context *context, struct batch *batch, uint32_t value)
{
	struct stream_slot *slot = &context->slots[batch->slot];

	batch->is_held = false;
	slot->held--;
	STORE(context->held_ns, context->held_ns - batch->estimate);
	STORE(context->held_launches, context->held_launches - batch->launches);
	slot->held_launches -= batch->launches;
	count_up(&context->held, -1);
	semaphores_release(context, slot, slot->held ? value : slot->acquired);
}

void batch_set_free(struct compute_context *context, struct batch *batch)
{
	if (batch->state == OPEN)
		context->slots[batch->slot].open = -1;
	if (batch->is_held)
		end_hold(context, batch, context->semaphores[batch->slot]);
	batch_drop_local_slice(context, batch);
	card_clock_put_event(context, batch->start);
	card_clock_put_event(context, batch->end);
	context->moved_at = clock_now();
	batch->state = FREE;
	count_up(&context->under_way, -1);
	while (context->top && context->batches[context->top - 1].state == FREE)
		context->top--;
}

/* Its work may run from now on. */
static void begin_batch(struct compute_context *context, struct batch *batch, uint64_t now)
{
	struct token_bucket *bucket = context->bucket;

	batch->was_idle = context->under_way == context->held + !batch->is_held;
	if (__atomic_exchange_n(&bucket->has_new_slice, 0, __ATOMIC_RELAXED)) {
		batch->is_first = true;
		batch->is_after_others = LOAD(bucket->was_waited_for);
	}
	batch->is_beside = container_slice_is_mixed(bucket);
	process_slice_wants(bucket, now);
}

static void open_batch(struct compute_context *context, struct stream_slot *slot, struct launch *launch, uint64_t now)
{
	struct batch *batch = free_batch(context);
	uint32_t value = batch && launch->is_held ? semaphores_acquire(context, slot, launch->stream) : 0;

	if (launch->is_held && !value)
		return;
	CUevent start = batch ? card_clock_record(context, launch->stream) : NULL;
	if (!start) {
		if (value && !slot->held)
			semaphores_release(context, slot, value);
		return;
	}
	*batch = (struct batch){.state = OPEN,
				.start = start,
				.slot = (uint32_t)(slot - context->slots),
				.order = ++context->orders,
				.kind = launch->kind,
				.opened_at = now,
				.is_held = launch->is_held,
				.semaphore = value,
				.is_behind_wait = slot->waits};
	slot->waits = false;
	count_up(&context->under_way, 1);
	slot->open = (int32_t)(batch - context->batches);
	context->top = bounds_max(context->top, slot->open + 1);
	launch->opened = true;
	if (launch->is_held) {
		slot->held++;
		count_up(&context->held, 1);
		return;
	}
	begin_batch(context, batch, now);
	/* The next batch begins where this one ends, which is more certain. */
	launch->closes = batch->is_first && !batch->is_beside;
}

/* Whether the kernel is to be measured alone: its last measurement is too old. */
static bool wants_sample(const struct stream_slot *slot, const struct launch *launch, uint64_t now)
{
	return !estimates_known(launch->kind) ||
	       (now - slot->sampled_at >= SAMPLES_APART && estimates_stale(launch->kind, now));
}

static void record_end(struct compute_context *context, struct batch *batch, CUstream stream, uint64_t now)
{
	context->slots[batch->slot].open = -1;
	batch_drop_local_slice(context, batch);
	batch->end = card_clock_record(context, stream);
	batch->state = CLOSED;
	batch->closed_at = now;
}

/*
 * Notes for how long the context was idle before the launch. That time is not the container's use. The context was idle
 * since a thread had waited for all of its work or, if none had, since the work should have been done.
 */
static void note_gap(struct compute_context *context, struct stream_slot *slot, uint64_t estimate, uint64_t asked,
		     uint64_t now)
{
	bool is_seen = !context->working && context->idle_since;
	uint64_t since = is_seen ? context->idle_since : context->expected;

	if (context->expected && (is_seen || now > since)) {
		context->gaps[context->gap_count++ % GAPS] = (struct gap){since, now, is_seen};
		if (!is_seen && asked > since && !container_slice_has_neighbours(context->bucket))
			STORE(context->is_polled, 1);
	}
	context->expected = (is_seen || context->expected < now ? now : context->expected) + estimate;
	count_up(&context->working, !slot->has_work);
	slot->has_work = true;
}

static void add_to(struct compute_context *context, struct batch *batch, struct stream_slot *slot,
		   struct launch *launch, uint64_t now)
{
	batch->is_mixed |= launch->kind != batch->kind;
	batch->is_guessed |= !estimates_fresh(launch->kind, now);
	slot->stream = launch->stream;
	slot->thread = guard_number_of(launch->thread);
	batch->joined_at = now;
	STORE(launch->kind->launched, LOAD(launch->kind->launched) + 1);
	batch->launches++;
	batch->estimate += launch->estimate;
	if (batch->is_held) {
		batch->is_doubted |= !estimates_trusted(launch->kind);
		STORE(context->held_ns, context->held_ns + launch->estimate);
		STORE(context->held_launches, context->held_launches + 1);
		slot->held_launches++;
		launch->closes |= batch->estimate >= LONG_ENOUGH;
		return;
	}
	batch->booked += launch->estimate;
	slot->expected = (slot->expected > now ? slot->expected : now) + launch->estimate;
	batch->expected = slot->expected;
	/* Where threads wake late, the end event would be put late, and hide how long the kernels take. */
	launch->closes |= batch->estimate >= (clock_lateness() ? WORTH_AN_EVENT : LONG_ENOUGH);
}

bool batch_join_reserved(struct launch *launch, uint64_t now)
{
	struct compute_context *context = launch->context;

	contexts_lock(&context->lock);
	struct stream_slot *slot = contexts_slot(context, launch->stream_key);
	struct batch *batch = slot->open < 0 ? NULL : &context->batches[slot->open];
	bool is_reserved = batch && slot->key == launch->stream_key && launch->estimate <= batch->local_slice &&
			   now < batch->local_slice_until && !wants_sample(slot, launch, now);
	if (is_reserved) {
		batch->local_slice -= launch->estimate;
		launch->batch = slot->open;
		launch->order = batch->order;
		note_gap(context, slot, launch->estimate, now, now);
		add_to(context, batch, slot, launch, now);
	}
	contexts_unlock(&context->lock);
	return is_reserved;
}

/* Puts the launch behind a semaphore, if its stream can wait for one. */
static void hold(struct compute_context *context, struct stream_slot *slot, struct launch *launch, uint64_t now)
{
	struct batch *batch = slot->open < 0 ? NULL : &context->batches[slot->open];
	bool sample = wants_sample(slot, launch, now);

	if (batch && (sample || !batch->is_held)) {
		record_end(context, batch, launch->stream, now);
		batch = NULL;
	}
	launch->is_held = true;
	if (!batch)
		open_batch(context, slot, launch, now);
	launch->batch = slot->open;
	launch->is_held = slot->open >= 0;
	if (launch->is_held) {
		batch = &context->batches[slot->open];
		launch->order = batch->order;
		launch->closes |= sample;
		if (sample)
			slot->sampled_at = now;
		add_to(context, batch, slot, launch, now);
	}
}

void batch_join(struct launch *launch, uint64_t asked, uint64_t now)
{
	struct compute_context *context = launch->context;

	contexts_lock(&context->lock);
	struct stream_slot *slot = contexts_slot(context, launch->stream_key);
	if (slot->key != launch->stream_key) { /* an end event in this stream says nothing of that one's work */
		launch->batch = -1;
		contexts_unlock(&context->lock);
		return;
	}
	struct batch *batch = slot->open < 0 ? NULL : &context->batches[slot->open];
	/* Another thread's launch is held since, and this one's stream may wait for it: its batch would not end. */
	if (slot->held || (context->held && batch_can_hold(launch))) {
		hold(context, slot, launch, now);
		if (launch->is_held)
			account_release(context->bucket, launch->estimate);
		contexts_unlock(&context->lock);
		return;
	}
	note_gap(context, slot, launch->estimate, asked, now);
	bool sample = wants_sample(slot, launch, now);
	if (sample)
		slot->sampled_at = now;
	if (batch && sample) {
		record_end(context, batch, launch->stream, now);
		batch = NULL;
	}
	if (!batch) {
		open_batch(context, slot, launch, now);
		batch = slot->open < 0 ? NULL : &context->batches[slot->open];
	}
	launch->batch = slot->open;
	if (batch) {
		launch->order = batch->order;
		launch->closes |= sample;
		add_to(context, batch, slot, launch, now);
	}
	if (batch && !launch->closes) {
		batch_drop_local_slice(context, batch);
		batch->local_slice = admission_take_local_slice(context->bucket, now, &batch->local_slice_until);
	}
	contexts_unlock(&context->lock);
}

/*
 * Returns the batch that the launch joined. Returns NULL if the batch was completed while the launch was in the driver:
 * then the launch's reservation went with it, and another batch may be at its place.
 */
static struct batch *batch_of(struct compute_context *context, const struct launch *launch)
{
	struct batch *batch = &context->batches[launch->batch];

	return batch->state != FREE && batch->order == launch->order ? batch : NULL;
}

bool batch_can_hold(const struct launch *launch)
{
	return launch->stream != CU_STREAM_PER_THREAD && !launch->is_member && !launch->context->has_no_semaphores;
}

bool batch_hold(struct launch *launch, uint64_t now)
{
	struct compute_context *context = launch->context;

	contexts_lock(&context->lock);
	struct stream_slot *slot = contexts_slot(context, launch->stream_key);
	bool has_room = context->under_way < HELD_MOST_BATCHES && context->held_launches < HELD_MOST_LAUNCHES &&
			slot->held_launches + BATCH_OPERATIONS * slot->held < HELD_MOST_OPERATIONS &&
			(!context->held || context->held_ns + launch->estimate <= HELD_MOST);
	if (slot->key == launch->stream_key && has_room)
		hold(context, slot, launch, now);
	contexts_unlock(&context->lock);
	return launch->is_held;
}

bool batch_first_held(struct compute_context *context, struct launch *launch)
{
	struct batch *first = NULL;

	for (uint32_t i = 0; i < context->top; i++) {
		struct batch *batch = &context->batches[i];
		if (batch->state != FREE && batch->is_held && (!first || batch->order < first->order))
			first = batch;
	}
	if (!first)
		return false;
	*launch = (struct launch){.context = context,
				  .bucket = context->bucket,
				  .kind = first->kind,
				  .stream_key = context->slots[first->slot].key,
				  .thread = &guard_this_thread,
				  .estimate = first->estimate,
				  .batch = (int32_t)(first - context->batches),
				  .order = first->order,
				  .is_held = true,
				  .is_doubted = first->is_mixed ? first->is_doubted : !estimates_trusted(first->kind)};
	return true;
}

void batch_release(struct launch *launch, uint64_t now)
{
	struct compute_context *context = launch->context;
	struct batch *batch = batch_of(context, launch);

	if (!batch || !batch->is_held) {
		account_release(launch->bucket, launch->estimate);
		return;
	}
	struct stream_slot *slot = &context->slots[batch->slot];
	if (batch->estimate > launch->estimate)
		account_reserve(launch->bucket, batch->estimate - launch->estimate, true, now);
	else if (batch->estimate < launch->estimate)
		account_release(launch->bucket, launch->estimate - batch->estimate);
	begin_batch(context, batch, now);
	batch->booked = batch->estimate;
	note_gap(context, slot, batch->estimate, now, now);
	slot->expected = bounds_max(slot->expected, now) + batch->estimate;
	batch->expected = slot->expected;
	batch->opened_at = now;
	if (batch->launched_at)
		batch->launched_at = now;
	end_hold(context, batch, batch->semaphore);
}

/* Another thread ended the batch while a launch was in the driver: the end event may lie before the work. */
static void move_end(struct compute_context *context, struct batch *batch, CUstream stream, uint64_t now)
{
	/* Behind a semaphore, or a wait for work behind one, the end would not come before others have had the card. */
	CUevent end = context->held ? NULL : card_clock_record(context, stream);

	batch->is_mixed = true; /* other work may lie between */
	if (!end)
		return;
	card_clock_put_event(context, batch->end);
	batch->end = end;
	batch->closed_at = now;
}

/* Whether the launch's batch is still open. Without the lock: the answer may be late. */
static bool is_open(const struct compute_context *context, const struct launch *launch)
{
	const struct batch *batch = &context->batches[launch->batch];

	return LOAD(batch->order) == launch->order && LOAD(batch->state) == OPEN;
}

/*
 * The call of a launch takes long where the driver waits for room, and the work has begun, or where the thread was held up
 * before.
 */
static void note_launched(struct batch *batch, const struct launch *launch, uint64_t now)
{
	batch->took_long = !launch->may_wait && now - batch->opened_at > LONG_CALL;
	batch->launched_at = launch->may_wait || batch->took_long ? batch->opened_at : now;
	if (batch->took_long) {
		batch->doubtful += now - batch->opened_at;
		batch->idle_times++;
	}
}

static void note_success(struct compute_context *context, struct batch *batch, const struct launch *launch,
			 uint64_t now)
{
	if (launch->opened)
		note_launched(batch, launch, now);
	if (launch->may_wait)
		batch->joined_at = now;
	if (batch->state == OPEN && launch->closes) {
		record_end(context, batch, launch->stream, now);
	} else if (batch->state == CLOSED) {
		move_end(context, batch, launch->stream, now);
	}
}

/*
 * Takes a launch that failed out of its batch, whether or not another thread has ended the batch. A batch that has no
 * other launch is freed.
 */
static void undo(struct compute_context *context, struct batch *batch, const struct launch *launch, uint64_t now)
{
	if (batch->is_held) {
		STORE(context->held_ns, context->held_ns - launch->estimate);
		STORE(context->held_launches, context->held_launches - 1);
		context->slots[batch->slot].held_launches--;
	} else {
		account_release(launch->bucket, launch->estimate);
		batch->booked -= launch->estimate;
	}
	batch->launches--;
	batch->estimate -= launch->estimate;
	if (!batch->launches)
		batch_set_free(context, batch);
	else if (launch->opened)
		batch->launched_at = now; /* for the others */
}

void batch_release_all(struct compute_context *context)
{
	struct launch first;

	while (batch_first_held(context, &first)) {
		account_reserve(first.bucket, first.estimate, estimates_known(first.kind), clock_now());
		batch_release(&first, clock_now());
	}
}

bool batch_joined(struct launch *launch, bool succeeded)
{
	struct compute_context *context = launch->context;

	if (succeeded && launch->batch >= 0 && !launch->opened && !launch->closes && is_open(context, launch))
		return false;
	uint64_t now = clock_now();
	if (launch->batch < 0) {
		/* There was no batch or event for it: the launch counts with its estimate. */
		if (succeeded)
			account_complete(launch->bucket, launch->estimate, launch->estimate, launch->estimate, now,
					 now);
		else
			account_release(launch->bucket, launch->estimate);
		return false;
	}
	contexts_lock(&context->lock);
	struct batch *batch = batch_of(context, launch);
	if (batch && succeeded)
		note_success(context, batch, launch, now);
	else if (batch)
		undo(context, batch, launch, now);
	contexts_unlock(&context->lock);
	return true;
}

bool batch_looks_for_quiet(const struct compute_context *context)
{
	return container_slice_has_neighbours(context->bucket) ||
	       (LOAD(context->is_polled) && LOAD(context->bucket->unsure) >= SLICE_EARLY);
}

uint64_t batch_quiet_at(const struct compute_context *context, uint64_t joined, uint64_t expected)
{
	uint64_t soonest = joined + BATCH_QUIET;

	if (!container_slice_has_neighbours(context->bucket) || account_ends_early(context->bucket))
		return soonest;
	return bounds_max(soonest, expected - BATCH_QUIET);
}

uint64_t batch_end_quiet(struct compute_context *context, uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 0; i < context->top; i++) {
		struct batch *batch = &context->batches[i];
		const struct stream_slot *slot = &context->slots[batch->slot];
		if (batch->state != OPEN || batch->is_held || !batch->launched_at || batch->is_behind_wait ||
		    slot->stream == CU_STREAM_PER_THREAD || (slot->stream == CU_STREAM_LEGACY && context->working > 1))
			continue;
		uint64_t due = batch_quiet_at(context, batch->joined_at, batch->expected);
		if (now < due) {
			next = bounds_min(next, due);
			continue;
		}
		record_end(context, batch, slot->stream, now);
	}
	return next;
}

void batch_note_done(struct compute_context *context, const struct batch *done)
{
	struct stream_slot *slot = &context->slots[done->slot];

	for (uint32_t i = 0; i < context->top; i++)
		if (context->batches[i].state != FREE && !context->batches[i].is_held &&
		    context->batches[i].slot == done->slot && &context->batches[i] != done)
			return;
	if (!slot->has_work)
		return;
	slot->has_work = false;
	count_up(&context->working, -1);
	if (!context->working)
		context->idle_since = done->ended_at;
}

/* Leaves the streams of other threads alone: those threads may have destroyed them. */
static struct batch *close_own(struct compute_context *context, struct stream_slot *slot, uint64_t least)
{
	struct batch *batch = slot->open < 0 ? NULL : &context->batches[slot->open];

	if (!batch || slot->thread != guard_number_of(&guard_this_thread) || batch->estimate < least)
		return NULL;
	record_end(context, batch, slot->stream, clock_now());
	return batch;
}

static void close_streams(struct compute_context *context, uint64_t key, uint64_t least)
{
	contexts_lock(&context->lock);
	for (int i = 0; i < STREAM_SLOTS; i++)
		if (key == ALL_STREAMS || context->slots[i].key == key)
			(void)close_own(context, &context->slots[i], least);
	contexts_unlock(&context->lock);
}

void batch_close(const struct launch *launch)
{
	close_streams(launch->context, ALL_STREAMS, 0);
}

/* ---- a thread waits for its work; between two such waits a stream is not idle ---- */

void batch_waiting(struct compute_context *context, uint64_t key)
{
	if (LOAD(context->under_way))
		close_streams(context, key, WORTH_AN_EVENT);
}

static void note_waited(struct compute_context *context, uint64_t key, bool others_wait)
{
	uint64_t now = clock_now();

	for (int i = 0; i < STREAM_SLOTS; i++) {
		struct stream_slot *slot = &context->slots[i];
		if (!slot->has_work || slot->thread != guard_number_of(&guard_this_thread) ||
		    (key != ALL_STREAMS && slot->key != key))
			continue;
		struct batch *closed = others_wait ? close_own(context, slot, 0) : NULL;
		if (closed) /* its work has ended just now */
			closed->joined_at = closed->closed_at;
		slot->has_work = false;
		count_up(&context->working, -1);
		if (!context->working) {
			context->idle_since = now;
			STORE(context->is_polled, 0);
		}
	}
}

bool batch_waited(struct compute_context *context, uint64_t key)
{
	if (!LOAD(context->working))
		return false;
	bool others_wait = container_slice_leaves_in_pauses(context->bucket) || admission_others_wait(context->bucket);
	contexts_lock(&context->lock);
	note_waited(context, key, others_wait);
	contexts_unlock(&context->lock);
	return others_wait;
}

/* Returns the stream's slot and holds the context's lock. NULL: the stream has no slot, and nothing is locked. */
static struct stream_slot *lock_stream_slot(struct compute_context *context, uint64_t key)
{
	contexts_lock(&context->lock);
	struct stream_slot *slot = contexts_slot(context, key);
	if (slot->key == key)
		return slot;
	contexts_unlock(&context->lock);
	return NULL;
}

/*
 * A batch that is not worth an event goes on where no other stream has work, or nobody waits for its end: its kernels count
 * with their estimates. Not while launches are held: it would last until those are released for which its stream may wait.
 */
static void interrupt_batch(struct compute_context *context, struct stream_slot *slot, CUstream stream, bool waits)
{
	struct batch *batch = &context->batches[slot->open];
	bool is_only = context->working == 1 && slot->has_work;
	bool goes_on = !context->held && (is_only || !container_slice_has_neighbours(context->bucket));

	if (waits || !goes_on || batch->estimate >= WORTH_AN_EVENT)
		record_end(context, batch, stream, clock_now());
	else
		batch->is_interrupted = true;
}

void batch_interrupt(struct compute_context *context, uint64_t key, CUstream stream, bool waits, uint64_t bytes)
{
	struct stream_slot *slot = lock_stream_slot(context, key);

	if (bytes)
		STORE(context->copied, LOAD(context->copied) + bytes);
	if (!slot)
		return;
	slot->copied += bytes;
	if (slot->open >= 0)
		interrupt_batch(context, slot, stream, waits);
	slot->waits |= waits;
	contexts_unlock(&context->lock);
}

void batch_waits_for_copy(struct compute_context *context, uint64_t key)
{
	struct stream_slot *slot = lock_stream_slot(context, key);

	if (!slot)
		return;
	slot->copied += LOAD(context->copied);
	STORE(context->copied, 0);
	contexts_unlock(&context->lock);
}

/* Returns an event behind what the launch's stream does now. NULL: the launch need not wait for that. */
static CUevent record_behind_copies(const struct launch *launch)
{
	struct stream_slot *slot = lock_stream_slot(launch->context, launch->stream_key);
	CUevent event = NULL;

	if (!slot)
		return NULL;
	if (slot->copied >= BATCH_COPY_WORTH && (!LOAD(container_slice.present) || container_slice_is_awaited())) {
		if (slot->open >= 0)
			record_end(launch->context, &launch->context->batches[slot->open], launch->stream, clock_now());
		event = card_clock_record(launch->context, launch->stream);
	}
	slot->copied = 0;
	contexts_unlock(&launch->context->lock);
	return event;
}

void batch_await_copies(const struct launch *launch)
{
	CUevent event = record_behind_copies(launch);
	uint64_t began = clock_now(), now = began;

	if (!event)
		return;
	while (now - began < COPY_PATIENCE && REAL(cuEventQuery, event) == CUDA_ERROR_NOT_READY) {
		clock_sleep_until(now + bounds_clamp((now - began) / 8, 20 * NS_PER_US, 100 * NS_PER_US));
		now = clock_now();
	}
	contexts_lock(&launch->context->lock);
	card_clock_put_event(launch->context, event);
	contexts_unlock(&launch->context->lock);
}

void batch_forget(struct compute_context *context, uint64_t key, CUstream stream)
{
	struct stream_slot *slot = lock_stream_slot(context, key);

	if (!slot)
		return;
	if (slot->open >= 0)
		record_end(context, &context->batches[slot->open], stream, clock_now());
	contexts_unlock(&context->lock);
}

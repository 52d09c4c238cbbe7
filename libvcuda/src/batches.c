/* See batches.h. */
#include "batches.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "capture_mode.h"
#include "captures.h"
#include "cards.h"
#include "clock.h"
#include "cuda_hooks.h"
#include "log.h"
#include "poller.h"

#define LONG_ENOUGH NS_PER_MS           /* estimated time in a batch */
#define SAMPLES_APART (2 * NS_PER_MS)   /* in a stream: two events cost some 5 us */
#define LATENCY (12 * NS_PER_US)        /* of a launch into a dry stream and of the wait for its end, at most */
#define WORTH_AN_EVENT (250 * NS_PER_US) /* estimated time: a batch that ends where a thread waits for it */
#define WORTH_IT_AMONG_OTHERS (50 * NS_PER_US) /* the same, where the stream is at something else */
#define FORGOTTEN (2 * NS_PER_MS)       /* a batch that nobody adds to or ends */
#define SWITCHES (100 * NS_PER_US)      /* what a change of contexts may add to an interval */
#define SLICE (2 * NS_PER_MS)
#define LAST_OF_OTHERS (50 * NS_PER_MS) /* how long another container may overrun its phase */
#define BASE_AGE NS_PER_S               /* float milliseconds: 61 ns at one second */
#define DRIFT 100000                    /* 10 ppm between the clocks */
#define EARLIEST_LOOK (50 * NS_PER_US)
#define LATEST_LOOK NS_PER_MS
#define PATIENCE (20 * NS_PER_MS)       /* with kernels on another card: those of groups wait for each other */
#define PATIENCE_HERE NS_PER_S
#define EXIT_PATIENCE (50 * NS_PER_MS)

enum { LANES = 64, BATCHES = 128, EVENTS_AT_ONCE = 32, MOST_CONTEXTS = 64, SPINS = 200, GAPS = 512 };

enum batch_state { FREE, OPEN, CLOSED };

struct batch {
	enum batch_state state;
	bool started;
	bool is_unsure;       /* another tenant's work may have been in between */
	bool is_first;        /* since the card was another's: one launch */
	bool is_unsteady;     /* it has kernels that take longer one time than another */
	bool is_mixed;        /* it has kernels of several kinds */
	bool is_interrupted;  /* the stream, the only one, was at something else in between */
	bool is_behind_wait;  /* the stream waited for the program before */
	uint32_t lane;
	uint32_t launches;
	struct estimate *kind;
	CUevent start, end;
	uint64_t order;
	uint64_t opened_at, launched_at, closed_at;
	uint64_t started_at, ended_at; /* the card's time, on this process's clock */
	uint64_t expected;    /* end */
	uint64_t estimate;    /* ns of all its launches: what is reserved */
	uint64_t booked;      /* of the bucket */
	uint64_t counted;     /* ns found used so far, */
	uint64_t counted_to;  /* the last of them */
	uint64_t allowance;   /* of the interval that may not be its own, at most */
	uint64_t gaps;        /* of what was counted, ns in which nothing was under way, */
	uint64_t doubtful;    /* those in which nothing should have been, */
	uint64_t dry_times;   /* and how often */
};

struct lane {
	uint64_t key;
	int32_t open;         /* batch */
	bool has_work;        /* that nobody has waited for yet */
	bool waits;           /* for the program, before what is launched next */
	CUstream stream;      /* of the last launch, by the thread: */
	const void *thread;
	uint64_t expected;    /* when all that was launched into it will be done */
	uint64_t sampled_at;
};

struct gap {
	uint64_t from, to;
	bool is_seen;         /* somebody had waited for everything; else it should only have been done */
};

struct core_context {
	CUcontext handle;
	CUdevice device;
	struct bucket *bucket;
	atomic_flag lock;
	uint64_t orders;
	uint32_t under_way;   /* batches that are not FREE */
	struct lane lanes[LANES];
	struct batch batches[BATCHES];
	CUevent events[2 * BATCHES + EVENTS_AT_ONCE];
	uint32_t event_count; /* not in use */
	uint32_t event_total;
	uint32_t working;     /* lanes that have work */
	uint64_t interrupted; /* the lane whose batches are, 0: none */
	uint64_t dry_since;   /* when the last of it had been waited for; 0: there is some, or was none yet */
	uint64_t expected;    /* when all of it should be done */
	uint64_t moved_at;    /* when something last ended, or was last found to be stuck */
	struct gap gaps[GAPS]; /* of late, in order */
	uint64_t gap_count;
	CUevent base;         /* an event whose time is known */
	uint64_t base_at;
	uint64_t base_seen;
};

static struct core_context *_Atomic contexts[MOST_CONTEXTS];
static _Atomic uint32_t generation = 1; /* changes when a context goes */
static atomic_bool stopped;
static atomic_int settling;
static atomic_flag making = ATOMIC_FLAG_INIT;

static __thread struct known {
	CUcontext handle;
	struct core_context *context;
	uint32_t generation;
} current; /* its address is the thread */

static uint64_t less(uint64_t from, uint64_t by)
{
	return from > by ? from - by : 0;
}

/* ---- locks: held for microseconds; who finds one taken for longer sleeps, as the clock may be virtual ---- */

static bool try_lock(atomic_flag *flag)
{
	return !atomic_flag_test_and_set_explicit(flag, memory_order_acquire);
}

static void enter(atomic_flag *flag)
{
	for (int spin = 0; !try_lock(flag); spin++)
		if (spin % SPINS == SPINS - 1)
			clock_sleep_until(clock_now() + 5 * NS_PER_US);
}

static void leave(atomic_flag *flag)
{
	atomic_flag_clear_explicit(flag, memory_order_release);
}

/* ---- contexts ---- */

static struct core_context *find(CUcontext handle)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct core_context *context = atomic_load_explicit(&contexts[i], memory_order_acquire);
		if (context && context->handle == handle)
			return context;
	}
	return NULL;
}

/* A record of a context that went is used again. */
static struct core_context *blank(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct core_context *context = atomic_load(&contexts[i]);
		if (context && context->handle)
			continue;
		if (!context)
			context = calloc(1, sizeof(*context));
		atomic_store_explicit(&contexts[i], context, memory_order_release);
		return context;
	}
	log_once(LOG_WARNING, "more than %d contexts: the rest is not held to the core share", MOST_CONTEXTS);
	return NULL;
}

static struct core_context *add(CUcontext handle)
{
	struct bucket *bucket;
	CUdevice device;

	if (!current_device(&device) || !(bucket = bucket_of_device(device)))
		return NULL;
	enter(&making);
	struct core_context *context = find(handle);
	if (!context && (context = blank())) {
		memset(context, 0, sizeof(*context));
		for (int i = 0; i < LANES; i++)
			context->lanes[i].open = -1;
		context->device = device;
		context->bucket = bucket;
		__atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
	}
	leave(&making);
	return context;
}

struct core_context *batches_context(const void **thread)
{
	struct known *known = &current; /* asked once: in a library it costs a call */
	uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
	CUcontext handle = NULL;

	*thread = known;
	if (REAL(cuCtxGetCurrent, &handle) != CUDA_SUCCESS || !handle)
		return NULL;
	if (known->handle == handle && known->generation == now)
		return known->context;
	known->context = find(handle);
	if (!known->context)
		known->context = add(handle);
	known->handle = handle;
	known->generation = now;
	return known->context;
}

struct bucket *batches_bucket(struct core_context *context)
{
	return context->bucket;
}

unsigned int batches_contexts(void)
{
	unsigned int count = 0;

	while (count < MOST_CONTEXTS && atomic_load_explicit(&contexts[count], memory_order_relaxed))
		count++;
	return count;
}

/* ---- events; with the context's lock, in a thread that has the context ---- */

static void more_events(struct core_context *context)
{
	for (int i = 0; i < EVENTS_AT_ONCE && context->event_total < 2 * BATCHES; i++) {
		CUevent event;
		if (REAL(cuEventCreate, &event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
			return;
		context->events[context->event_count++] = event;
		context->event_total++;
	}
}

static CUevent take_event(struct core_context *context)
{
	if (!context->event_count && context->event_total < 2 * BATCHES)
		more_events(context);
	return context->event_count ? context->events[--context->event_count] : NULL;
}

static void put_event(struct core_context *context, CUevent event)
{
	if (event && event != context->base)
		context->events[context->event_count++] = event;
}

static CUevent record(struct core_context *context, CUstream stream)
{
	CUevent event = captures_has(stream) ? NULL : take_event(context); /* a graph's event must not be asked */

	if (!event)
		return NULL;
	if (REAL(cuEventRecord, event, stream) == CUDA_SUCCESS)
		return event;
	put_event(context, event);
	return NULL;
}

/* ---- batches ---- */

static struct batch *free_batch(struct core_context *context)
{
	for (int i = 0; context->under_way < BATCHES && i < BATCHES; i++)
		if (context->batches[i].state == FREE)
			return &context->batches[i];
	return NULL;
}

static void set_free(struct core_context *context, struct batch *batch)
{
	if (batch->state == OPEN)
		context->lanes[batch->lane].open = -1;
	put_event(context, batch->start);
	put_event(context, batch->end);
	context->moved_at = clock_now();
	batch->state = FREE;
	context->under_way--;
}

static struct lane *lane_of(struct core_context *context, uint64_t key)
{
	uint32_t place = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) % LANES;
	struct lane *lane = &context->lanes[place];

	for (int i = 0; i < LANES; i++) {
		struct lane *at = &context->lanes[(place + (uint32_t)i) % LANES];
		if (at->key == key)
			return at;
		if (!at->key) {
			at->key = key;
			return at;
		}
	}
	if (lane->open < 0)
		lane->key = key; /* of a stream that has nothing open: most likely it is gone */
	return lane;
}

static void open_batch(struct core_context *context, struct lane *lane, struct launch *launch, uint64_t now)
{
	struct bucket *bucket = context->bucket;
	struct batch *batch = free_batch(context);

	CUevent start = batch ? record(context, launch->stream) : NULL;
	if (!start)
		return;
	*batch = (struct batch){.state = OPEN, .start = start, .lane = (uint32_t)(lane - context->lanes), .order = ++context->orders,
				.kind = launch->kind, .opened_at = now, .is_behind_wait = lane->waits};
	lane->waits = false;
	if (__atomic_exchange_n(&bucket->fresh, 0, __ATOMIC_RELAXED)) {
		batch->is_unsure = true;
		batch->allowance = SWITCHES;
	}
	enum bucket_edge edge = bucket_edge(bucket, now);
	if (edge != WITHIN_PHASE) {
		batch->is_unsure = true;
		batch->allowance = edge == FIRST_IN_PHASE ? LAST_OF_OTHERS : SLICE + SWITCHES;
	}
	bucket_wants(bucket, now);
	context->under_way++;
	lane->open = (int32_t)(batch - context->batches);
	launch->opened = true;
	batch->is_first = edge == FIRST_IN_PHASE || (edge == WITHIN_PHASE && batch->allowance);
	launch->closes = batch->is_first; /* what follows it begins where it ends, which is more certain */
}

/* A kernel that was not measured for long is measured alone. */
static bool wants_sample(struct lane *lane, const struct launch *launch, uint64_t now)
{
	if (estimates_known(launch->kind) &&
	    (now - lane->sampled_at < SAMPLES_APART || !estimates_stale(launch->kind, now)))
		return false;
	lane->sampled_at = now;
	return true;
}

static void end_batch(struct core_context *context, struct batch *batch, CUstream stream, uint64_t now)
{
	context->lanes[batch->lane].open = -1;
	batch->end = record(context, stream);
	batch->state = CLOSED;
	batch->closed_at = now;
}

/*
 * The launch finds nothing under way: since somebody waited for all of it, or, if nobody did, since it should have been
 * done. What ran dry meanwhile is not the container's use.
 */
static void note_gap(struct core_context *context, struct lane *lane, uint64_t estimate, uint64_t now)
{
	bool is_seen = !context->working && context->dry_since;
	uint64_t since = is_seen ? context->dry_since : context->expected;

	if (context->expected && (is_seen || now > since))
		context->gaps[context->gap_count++ % GAPS] = (struct gap){since, now, is_seen};
	context->expected = (is_seen || context->expected < now ? now : context->expected) + estimate;
	context->working += !lane->has_work;
	lane->has_work = true;
}

/* Notes what of the interval lies in gaps. Within one kernel there is none. */
static void note_gaps_within(const struct core_context *context, struct batch *batch, uint64_t from, uint64_t to)
{
	for (uint64_t i = context->gap_count; i && context->gap_count - i < GAPS && batch->launches > 1; i--) {
		const struct gap *gap = &context->gaps[(i - 1) % GAPS];
		uint64_t begin = gap->from > from ? gap->from : from, end = gap->to < to ? gap->to : to;
		if (gap->to <= from)
			break;
		if (begin > end)
			continue;
		*(gap->is_seen ? &batch->gaps : &batch->doubtful) += end - begin;
		batch->dry_times++;
	}
}

/* Another stream has work meanwhile: the interval is not only the interrupted one's. */
static void count_interruptions(struct core_context *context)
{
	for (int i = 0; i < BATCHES; i++)
		context->batches[i].is_interrupted = false;
	context->interrupted = 0;
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
		batch->is_mixed |= launch->kind != batch->kind;
		batch->is_unsteady |= !estimates_steady(launch->kind);
		lane->stream = launch->stream;
		lane->thread = launch->thread;
		batch->launches++;
		batch->estimate += launch->estimate;
		batch->booked += launch->estimate;
		lane->expected = (lane->expected > now ? lane->expected : now) + launch->estimate;
		batch->expected = lane->expected;
		launch->closes |= sample || batch->estimate >= LONG_ENOUGH;
	}
	leave(&context->lock);
}

/* In which nothing was launched: the one launch failed. */
static void undo(struct core_context *context, struct batch *batch, const struct launch *launch)
{
	batch->launches--;
	batch->estimate -= launch->estimate;
	batch->booked -= launch->estimate;
	if (!batch->launches)
		set_free(context, batch);
}

void batches_joined(struct launch *launch, bool succeeded)
{
	struct core_context *context = launch->context;

	if (succeeded && launch->batch >= 0 && !launch->opened && !launch->closes)
		return;
	if (!succeeded)
		bucket_release(launch->bucket, launch->estimate);
	if (launch->batch < 0) {
		/* No event was to be had: it counts what is known of it. */
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
		if (succeeded && launch->closes)
			end_batch(context, batch, launch->stream, now);
	}
	leave(&context->lock);
	poller_needed();
}

/* The streams of other threads are theirs: they may be destroyed. */
static void close_own(struct core_context *context, struct lane *lane, uint64_t least)
{
	struct batch *batch = lane->open < 0 ? NULL : &context->batches[lane->open];

	if (batch && lane->thread == &current && batch->estimate >= least)
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

/* ---- a thread waits for its work: between two such waits a stream does not run dry ---- */

void batches_waiting(uint64_t key)
{
	const void *thread;
	struct core_context *context = atomic_load(&contexts[0]) ? batches_context(&thread) : NULL;

	if (!context || !context->under_way)
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
		if (!lane->has_work || lane->thread != &current || (key != ALL_LANES && lane->key != key))
			continue;
		if (others_wait)
			close_own(context, lane, 0);
		lane->has_work = false;
		if (!--context->working)
			context->dry_since = now;
	}
}

void batches_waited(uint64_t key)
{
	const void *thread;
	struct core_context *context = atomic_load(&contexts[0]) ? batches_context(&thread) : NULL;

	if (!context || !context->working)
		return;
	bool others_wait = bucket_others_wait(context->bucket);
	enter(&context->lock);
	note_waited(context, key, others_wait);
	leave(&context->lock);
	if (others_wait)
		(void)batches_settle();
}

/* The stream's lane, with the context's lock. NULL: there is none, and nothing is locked. */
static struct lane *enter_lane(uint64_t key, struct core_context **context)
{
	const void *thread;

	*context = atomic_load(&contexts[0]) ? batches_context(&thread) : NULL;
	if (!*context)
		return NULL;
	enter(&(*context)->lock);
	struct lane *lane = lane_of(*context, key);
	if (lane->key == key)
		return lane;
	leave(&(*context)->lock);
	return NULL;
}

/* A batch that is not worth an event goes on; if it is alone, its kernels are counted as what they are known to take. */
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

/* ---- the card's clock ---- */

/* The event's time. It was recorded at `recorded` and is known to be past at `now`: that sets the clocks right. */
static uint64_t time_of(struct core_context *context, CUevent event, uint64_t recorded, uint64_t now)
{
	float milliseconds;

	if (!context->base) {
		context->base = event;
		context->base_at = recorded;
		context->base_seen = now;
		return recorded;
	}
	if (REAL(cuEventElapsedTime, &milliseconds, context->base, event) != CUDA_SUCCESS)
		return recorded;
	int64_t since = (int64_t)((double)milliseconds * 1e6);
	if ((int64_t)context->base_at + since < (int64_t)recorded)
		context->base_at = recorded - (uint64_t)since;
	if ((int64_t)context->base_at + since > (int64_t)now)
		context->base_at = now - (uint64_t)since;
	return context->base_at + (uint64_t)since;
}

/* A start event of late becomes the one that times are counted from. */
static void renew_base(struct core_context *context, struct batch *batch, uint64_t now)
{
	if (now - context->base_seen < BASE_AGE || !batch->start || batch->start == context->base || !batch->started)
		return;
	CUevent old = context->base;
	context->base_at = batch->started_at - (now - context->base_seen) / DRIFT;
	context->base_seen = now;
	context->base = batch->start;
	context->events[context->event_count++] = old;
	batch->start = NULL;
}

/* ---- what has ended ---- */

enum { UNDER_WAY, OVER, LOST };

static int query(CUevent event)
{
	CUresult result = event ? REAL(cuEventQuery, event) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_SUCCESS ? OVER : result == CUDA_ERROR_NOT_READY ? UNDER_WAY : LOST;
}

/* Notes what has happened to a batch; the streams of `blocked` have an older one that has not ended. */
static void look_at(struct core_context *context, struct batch *batch, uint64_t *blocked, uint64_t now)
{
	uint64_t bit = (uint64_t)1 << batch->lane;

	if (!batch->started && batch->launched_at && !(*blocked & bit) && query(batch->start) == OVER) {
		batch->started = true;
		batch->started_at = time_of(context, batch->start, batch->opened_at, now);
		if (batch->launched_at > batch->started_at) /* the kernel came after the event, into an empty stream */
			batch->started_at = batch->launched_at < now ? batch->launched_at : now;
	}
	if (batch->started && batch->state == CLOSED && !batch->ended_at && query(batch->end) == OVER)
		batch->ended_at = time_of(context, batch->end, batch->closed_at, now);
	if (batch->ended_at && batch->ended_at < batch->started_at)
		batch->ended_at = batch->started_at;
	if (!batch->ended_at)
		*blocked |= bit;
}

/*
 * What the container used of the interval, of which `raw` ns were not counted for other work. Certainly not the times
 * when the stream was seen to be dry; perhaps not what launches and waits take on the way there and back, what a change
 * of contexts takes, or what lies in other containers' phases. Within these bounds, what the kernels are known to take.
 */
static uint64_t own_part(const struct core_context *context, struct batch *batch, uint64_t to, uint64_t raw)
{
	uint64_t outside = bucket_outside(context->bucket, batch->started_at, to);
	uint64_t most = less(raw, batch->gaps);
	uint64_t strange = batch->allowance + (outside ? outside + SLICE : 0);
	uint64_t least = less(most, batch->doubtful + batch->dry_times * LATENCY + strange);
	uint64_t guess = batch->estimate;

	if (batch->is_interrupted)
		least = 0;
	batch->is_unsure |= outside != 0;
	if (batch->is_unsteady && batch->is_unsure && !batch->is_first)
		guess = less(most, outside / 2);
	return guess < least ? least : guess > most ? most : guess;
}

/* Beside the work of other streams, and where it was just taken to be as known, an interval tells no more than a bound. */
static void learn(const struct core_context *context, const struct batch *batch, uint64_t used, uint64_t now)
{
	uint64_t took = batch->ended_at - batch->started_at;
	bool is_alone = batch->counted == took;
	bool is_certain = is_alone && ((!batch->dry_times && !batch->is_unsure) || used > 4 * batch->estimate);

	if (batch->is_mixed || batch->is_interrupted || (batch->launches > 1 && (batch->dry_times || !is_alone)))
		return;
	estimates_add(batch->kind, is_alone ? used : took, batch->launches, !is_certain, now);
	if (batch->launches == 1)
		bucket_measured(context->bucket, used);
}

/* It had ended before it was last seen under way, by the card's clock. */
static void count_back(struct core_context *context, struct batch *batch)
{
	uint64_t over = less(batch->counted_to, batch->ended_at);

	if (!over || !batch->ended_at)
		return;
	batch->counted = less(batch->counted, over);
	bucket_count_back(context->bucket, batch->counted_to, batch->ended_at);
}

static void count(struct core_context *context, struct batch *batch, uint64_t now)
{
	uint64_t to = batch->ended_at ? batch->ended_at : now;
	uint64_t found = bucket_uncounted(context->bucket, batch->started_at, to);

	batch->counted += found;
	if (found)
		batch->counted_to = to;
	count_back(context, batch);
	note_gaps_within(context, batch, to - found, to);
	uint64_t used = own_part(context, batch, to, batch->counted);
	if (batch->ended_at) {
		bucket_settle(context->bucket, batch->estimate, batch->booked, used, now);
		learn(context, batch, used, now);
		renew_base(context, batch, now);
		set_free(context, batch);
	} else if (used > batch->booked) {
		bucket_book(context->bucket, used - batch->booked, now);
		batch->booked = used;
	}
}

/* Nothing more will be known of it. */
static void write_off(struct core_context *context, struct batch *batch, uint64_t now)
{
	bucket_settle(context->bucket, batch->estimate, batch->booked, batch->estimate, now);
	set_free(context, batch);
}

static bool is_lost(const struct batch *batch, uint64_t now)
{
	if (batch->state == OPEN)
		return batch->launches && batch->launched_at && now > batch->expected + FORGOTTEN;
	return !batch->ended_at && (query(batch->start) == LOST || query(batch->end) == LOST);
}

/* In the order of their beginnings, so that the union comes out right. */
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

static void settle(struct core_context *context, uint64_t now)
{
	struct batch *all[BATCHES], *started[BATCHES];
	uint64_t blocked = 0;
	int used = 0, begun = 0;

	for (int i = 0; i < BATCHES && used < (int)context->under_way; i++)
		if (context->batches[i].state != FREE)
			insert(all, used++, &context->batches[i], by_order);
	for (int i = 0; i < used; i++) {
		look_at(context, all[i], &blocked, now);
		if (is_lost(all[i], now))
			write_off(context, all[i], now);
		else if (all[i]->started)
			insert(started, begun++, all[i], by_start);
	}
	for (int i = 0; i < begun; i++)
		count(context, started[i], now);
}

static uint64_t next_end(const struct core_context *context, uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < BATCHES; i++) {
		const struct batch *batch = &context->batches[i];
		if (batch->state == FREE)
			continue;
		uint64_t end = batch->expected + (batch->state == OPEN ? FORGOTTEN : 0);
		uint64_t late = end < now ? (now - end) / 4 : 0;
		uint64_t look = late ? now + (late < LATEST_LOOK ? late : LATEST_LOOK) : end;
		look = look < now + EARLIEST_LOOK ? now + EARLIEST_LOOK : look;
		next = look < next ? look : next;
	}
	return next;
}

static uint64_t settle_context(struct core_context *context)
{
	CUcontext before;
	uint64_t next = UINT64_MAX;

	if (!try_lock(&context->lock))
		return clock_now() + EARLIEST_LOOK;
	if (context->under_way && context->handle && REAL(cuCtxPushCurrent_v2, context->handle) == CUDA_SUCCESS) {
		uint64_t now = clock_now();
		settle(context, now);
		next = next_end(context, now);
		(void)REAL(cuCtxPopCurrent_v2, &before);
	}
	leave(&context->lock);
	return next;
}

uint64_t batches_settle(void)
{
	uint64_t next = UINT64_MAX;
	CUstreamCaptureMode mode = capture_mode_relax(); /* another thread's capture may forbid this one to ask */

	atomic_fetch_add(&settling, 1);
	for (int i = 0; i < MOST_CONTEXTS && !atomic_load(&stopped); i++) {
		struct core_context *context = atomic_load_explicit(&contexts[i], memory_order_acquire);
		if (!context)
			break;
		uint64_t look = __atomic_load_n(&context->under_way, __ATOMIC_RELAXED) ? settle_context(context)
										       : UINT64_MAX;
		next = look < next ? look : next;
	}
	atomic_fetch_sub(&settling, 1);
	capture_mode_restore(mode);
	return next;
}

/* Nothing of its context has ended, nor was it looked away from that, for longer than it should take. */
static bool is_stuck(const struct core_context *context, const struct batch *batch, uint64_t least, uint64_t now)
{
	uint64_t since = batch->opened_at > context->moved_at ? batch->opened_at : context->moved_at;

	if (batch->state == FREE || batch->ended_at)
		return false;
	uint64_t patience = 4 * (batch->estimate + estimates_ns(batch->kind));
	return now > since + (patience > least ? patience : least);
}

static bool runs(const struct core_context *context)
{
	for (int i = 0; i < BATCHES; i++)
		if (context->batches[i].state != FREE && context->batches[i].started && !context->batches[i].ended_at)
			return true;
	return false;
}

/* What waits for the program, which may wait for this very launch, keeps the card from nothing. */
static bool has_stuck(const struct core_context *context, const struct lane *own, uint64_t least, uint64_t now)
{
	bool is_idle = least > PATIENCE && !runs(context);

	for (int i = 0; i < BATCHES; i++) {
		const struct batch *batch = &context->batches[i];
		if (&context->lanes[batch->lane] != own &&
		    is_stuck(context, batch, batch->is_behind_wait && is_idle ? PATIENCE : least, now))
			return true;
	}
	return false;
}

bool batches_stuck_elsewhere(const struct launch *launch, uint64_t now)
{
	for (int i = 0; i < MOST_CONTEXTS; i++) {
		struct core_context *context = atomic_load(&contexts[i]);
		if (!context)
			break;
		if (!context->under_way || !try_lock(&context->lock))
			continue;
		const struct lane *own = context == launch->context ? lane_of(context, launch->lane) : NULL;
		uint64_t least = context->bucket == launch->bucket ? PATIENCE_HERE : PATIENCE;
		bool stuck = has_stuck(context, own, least, now);
		if (stuck)
			context->moved_at = now;
		leave(&context->lock);
		if (stuck)
			return true;
	}
	return false;
}

/* ---- a context goes ---- */

struct core_context *batches_hold(CUcontext handle)
{
	struct core_context *context = handle ? find(handle) : NULL;

	if (context)
		enter(&context->lock);
	return context;
}

void batches_let_go(struct core_context *context, bool is_gone)
{
	uint64_t now = clock_now();

	if (!context)
		return;
	for (int i = 0; is_gone && i < BATCHES; i++)
		if (context->batches[i].state != FREE)
			write_off(context, &context->batches[i], now);
	if (is_gone) {
		__atomic_store_n(&context->handle, NULL, __ATOMIC_RELEASE);
		atomic_fetch_add(&generation, 1);
	}
	leave(&context->lock);
}

void batches_reset(void)
{
	for (int i = 0; i < MOST_CONTEXTS; i++)
		atomic_store(&contexts[i], NULL);
	atomic_fetch_add(&generation, 1);
	atomic_flag_clear(&making);
	atomic_store(&settling, 0);
}

void batches_stop(void)
{
	uint64_t until = clock_now() + EXIT_PATIENCE;

	atomic_store(&stopped, true);
	while (atomic_load(&settling) && clock_now() < until)
		clock_sleep_until(clock_now() + 20 * NS_PER_US);
}

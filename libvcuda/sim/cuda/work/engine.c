/*
 * The engine of a context: a thread that begins and ends the work of the context's streams in the order of the model's
 * times. It asks for time slices (state/turn.h) and counts how long the card is busy. The effects of work are in
 * cuda/work/copy.c, cuda/gexec/memop.c and other files; the streams' queues and submission are in cuda/work/queue.c.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "cuda/work/queue.h"
#include "state/clock.h"
#include "state/realtime.h"

#define MEETING_NS 100000u /* how often a kernel that waits for another one checks */
/* If no thread waits, works that end within this time are handled together. What a stream waits for is looked at in time. */
#define LAZY_NS 50000u

/* True for kernels and for other work of the card's multiprocessors. */
static bool is_kernel(const struct sim_work *work)
{
	return work->share != 0;
}

/* With `event_turn` also for what the front end of a context's channels does. */
static bool needs_turn(const struct sim_work *work)
{
	return is_kernel(work) ||
	       (sim_state_header()->event_turn &&
		(work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ||
		 (work->type == CU_GRAPH_NODE_TYPE_HOST && work->host.by_card)));
}

static uint64_t later_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/*
 * Whether the stream's first work may begin, and when, according to the stream's order, the default stream's order and
 * its event. The default stream waits for all blocking streams, and they wait for it.
 */
static bool may_begin(const struct sim_engine *engine, const struct sim_stream *stream, uint64_t *time)
{
	const struct sim_work *work = stream->head;

	*time = later_of(work->submitted, stream->last_end);
	if (work->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && work->moment) {
		if (!work->moment->reached)
			return false;
		*time = later_of(*time, work->moment->time);
	}
	if (stream->flags & SIM_STREAM_NON_BLOCKING)
		return true;
	for (const struct sim_stream *other = engine->streams; other; other = other->next) {
		if (other == stream || other->flags & SIM_STREAM_NON_BLOCKING || other->is_legacy == stream->is_legacy)
			continue;
		if (other->head && other->head->sequence < work->sequence)
			return false;
		*time = later_of(*time, other->last_end);
	}
	return true;
}

static void begin_busy(struct sim_engine *engine, uint64_t time)
{
	if (engine->busy_since)
		return;
	engine->busy_since = time;
	sim_turn_runs(engine->card, time);
}

static void end_busy(struct sim_engine *engine, uint64_t time)
{
	if (!engine->busy_since)
		return;
	sim_turn_runs(engine->card, 0);
	sim_turn_account(engine->card, engine->busy_since, time);
	engine->busy_since = 0;
}

/* The end of a kernel that begins or continues at `time`. SIM_NEVER: it waits for other kernels to begin. */
static uint64_t end_of(struct sim_work *work, uint64_t time)
{
	uint64_t since = time;

	work->is_meeting = work->meeting && !sim_meeting_join(work, time, &since);
	return work->is_meeting ? SIM_NEVER : later_of(time, since) + work->remaining;
}

/* Copies of one direction follow one another. */
static uint64_t copy_begin(struct sim_engine *engine, const struct sim_work *work, uint64_t time)
{
	if (work->type != CU_GRAPH_NODE_TYPE_MEMCPY)
		return time;
	unsigned direction = work->copy.to.on_card ? SIM_COPY_TO_CARD : SIM_COPY_FROM_CARD;
	if (sim_state_header()->shared_copies)
		return sim_turn_copy(engine->card, direction, time, work->remaining);
	uint64_t *end = &engine->copies_end[direction];
	time = later_of(time, *end);
	*end = time + work->remaining;
	return time;
}

static void run(struct sim_engine *engine, struct sim_stream *stream, uint64_t time)
{
	struct sim_work *work = stream->head;

	work->state = SIM_RUNNING;
	if (!is_kernel(work)) {
		engine->fronts += needs_turn(work);
		work->end = copy_begin(engine, work, time) + work->remaining;
		return;
	}
	stream->turn = ++engine->begun;
	engine->share += work->share;
	begin_busy(engine, time);
	work->end = end_of(work, time);
}

/* Checks whether the kernels that others wait for have begun. A waiting kernel runs and keeps the card busy. */
static void look_at_meetings(struct sim_engine *engine, uint64_t now, uint64_t *wake)
{
	for (struct sim_stream *stream = engine->streams; stream; stream = stream->next) {
		struct sim_work *work = stream->head;
		if (!work || work->state != SIM_RUNNING || !work->is_meeting)
			continue;
		uint64_t since;
		work->is_meeting = !sim_meeting_join(work, now, &since);
		if (!work->is_meeting)
			work->end = later_of(since, stream->last_end) + work->remaining;
		else if (*wake > now + MEETING_NS)
			*wake = now + MEETING_NS;
	}
}

/* The time slice has ended: running kernels stop where they are. */
static void pause_kernels(struct sim_engine *engine, uint64_t time)
{
	for (struct sim_stream *stream = engine->streams; stream; stream = stream->next) {
		struct sim_work *work = stream->head;
		if (!work || work->state != SIM_RUNNING || !is_kernel(work))
			continue;
		if (!work->is_meeting)
			work->remaining = work->end - time;
		work->state = SIM_PAUSED;
	}
	engine->share = 0;
	engine->has_turn = false;
	end_busy(engine, time);
}

/* Whether the slice has ended, but not for the kernels that run: with `whole_kernels` they keep the card. */
static bool is_overtime(const struct sim_engine *engine, uint64_t now)
{
	return sim_state_header()->whole_kernels && engine->share && engine->slice.until <= now &&
	       sim_turn_is_wanted(engine->card);
}

/* Kernels run side by side while they fit. No kernel begins at the end of a slice. */
static bool begin_kernel(struct sim_engine *engine, struct sim_stream *stream, uint64_t time)
{
	struct sim_work *work = stream->head;

	if (!engine->is_unlimited) {
		if (!engine->has_turn)
			return false;
		time = later_of(time, engine->slice.since);
		if (time >= engine->slice.until || engine->freed > engine->slice.until)
			return false;
	}
	if (engine->share && engine->share + work->share > SIM_WHOLE_CARD) {
		work->was_crowded = true;
		return false;
	}
	if (work->was_crowded)
		time = later_of(time, engine->freed);
	run(engine, stream, time);
	return true;
}

/* Orders by priority, then by how long ago the stream's last kernel began. */
static bool is_before(const struct sim_stream *a, const struct sim_stream *b)
{
	return a->priority != b->priority ? a->priority < b->priority : a->turn < b->turn;
}

static bool is_idle(const struct sim_stream *stream)
{
	return stream->head && stream->head->state != SIM_RUNNING;
}

/* The first kernel in order that may begin and comes after `last`. */
static struct sim_stream *next_kernel(const struct sim_engine *engine, const struct sim_stream *last, uint64_t *begin)
{
	struct sim_stream *first = NULL;
	uint64_t time;

	for (struct sim_stream *stream = engine->streams; stream; stream = stream->next) {
		if (!is_idle(stream) || !needs_turn(stream->head) || (last && !is_before(last, stream)) ||
		    (first && !is_before(stream, first)) || !may_begin(engine, stream, &time))
			continue;
		first = stream;
		*begin = time;
	}
	return first;
}

/* Begins what can begin. Returns whether any work began; sets `wants_turn` if a kernel needs a time slice. */
static bool begin_works(struct sim_engine *engine, bool *wants_turn)
{
	struct sim_stream *kernel = NULL;
	uint64_t time;
	bool any = false;

	for (struct sim_stream *stream = engine->streams; stream; stream = stream->next)
		if (is_idle(stream) && !needs_turn(stream->head) && may_begin(engine, stream, &time)) {
			run(engine, stream, time);
			any = true;
		}
	while ((kernel = next_kernel(engine, kernel, &time)) != NULL) {
		if (begin_kernel(engine, kernel, time))
			return true;
		*wants_turn = true;
	}
	return any;
}

static struct sim_stream *next_to_end(struct sim_engine *engine)
{
	struct sim_stream *first = NULL;

	for (struct sim_stream *stream = engine->streams; stream; stream = stream->next)
		if (stream->head && stream->head->state == SIM_RUNNING && stream->head->end != SIM_NEVER &&
		    (!first || stream->head->end < first->head->end))
			first = stream;
	return first;
}

static void end_work(struct sim_engine *engine, struct sim_stream *stream)
{
	struct sim_work *work = stream->head;
	uint64_t time = work->end;

	if (needs_turn(work))
		engine->freed = time;
	if (is_kernel(work)) {
		engine->share -= work->share;
		if (!engine->share)
			end_busy(engine, time);
	} else if (needs_turn(work)) {
		engine->fronts--;
	}
	if (work->type != CU_GRAPH_NODE_TYPE_KERNEL) {
		pthread_mutex_unlock(&sim_driver.lock);
		sim_finish_perform(work);
		pthread_mutex_lock(&sim_driver.lock);
		if (work->type == CU_GRAPH_NODE_TYPE_HOST)
			time = later_of(time, sim_clock_now());
	}
	sim_finish_work(engine, stream, time);
}

static void pass_turn(struct sim_engine *engine, uint64_t at, bool wants_more)
{
	struct sim_slice slice;

	if (sim_turn_pass(engine->card, engine->number, at, wants_more, &slice) != SIM_OK) {
		engine->is_unlimited = true;
		return;
	}
	if (slice.mine && engine->busy_since) { /* the slice was extended: count the time until now */
		uint64_t since = engine->busy_since;
		engine->busy_since = at;
		sim_turn_account(engine->card, since, at);
		sim_turn_runs(engine->card, at);
	}
	if (!slice.mine)
		pause_kernels(engine, at);
	engine->slice = slice;
	engine->has_turn = slice.mine;
}

static void ask_for_turn(struct sim_engine *engine, uint64_t now)
{
	if (sim_turn_ask(engine->card, engine->number, now, &engine->slice) != SIM_OK)
		engine->is_unlimited = true;
	else
		engine->has_turn = engine->slice.mine;
}

/* Handles the next end of a work or of the slice if its time has come; otherwise stores in `wake` when it comes. */
static bool handle_next(struct sim_engine *engine, uint64_t now, bool wants_turn, uint64_t *wake)
{
	uint64_t look = SIM_NEVER;

	look_at_meetings(engine, now, &look);
	struct sim_stream *stream = next_to_end(engine);
	uint64_t end = stream ? stream->head->end : SIM_NEVER;
	bool slice_first =
		engine->has_turn && !engine->is_unlimited && engine->slice.until < end && !is_overtime(engine, now);

	*wake = slice_first ? engine->slice.until : end;
	if (*wake > now) {
		*wake = *wake < look ? *wake : look;
		return false;
	}
	if (slice_first)
		pass_turn(engine, later_of(engine->freed, engine->slice.until), engine->share || wants_turn);
	else
		end_work(engine, stream);
	return true;
}

static void sleep_until(struct sim_engine *engine, uint64_t wake, uint64_t now, bool wants_turn)
{
	bool may_lose = engine->has_turn && !engine->is_unlimited && sim_state_header()->wake_ns;

	if (may_lose || (wants_turn && !engine->has_turn)) {
		if (!engine->has_turn && wake > engine->slice.until)
			wake = engine->slice.until;
		engine->waits_for_turn = true;
		pthread_mutex_unlock(&sim_driver.lock);
		sim_clock_wait_word(engine->slice.word, engine->slice.seen, wake);
		pthread_mutex_lock(&sim_driver.lock);
		engine->waits_for_turn = false;
		if (may_lose) /* its slice may end sooner now */
			ask_for_turn(engine, sim_clock_now());
		return;
	}
	bool keeps_idle = engine->has_turn && !engine->share;
	bool is_watched = __atomic_load_n(&sim_driver.watches, __ATOMIC_RELAXED);
	if (!engine->waiting && !keeps_idle && !is_watched && wake != SIM_NEVER && wake < now + LAZY_NS)
		wake = now + LAZY_NS;
	sim_clock_wait(&engine->work, &sim_driver.lock, wake);
}

/* When an idle context passes the card on: at once, or `idle_ns` later. */
static uint64_t idle_end(const struct sim_engine *engine)
{
	return later_of(engine->freed, engine->slice.since) + sim_state_header()->idle_ns;
}

static void step(struct sim_engine *engine)
{
	bool wants_turn = false;
	uint64_t wake, now = sim_clock_now();

	while (begin_works(engine, &wants_turn))
		wants_turn = false;
	if (handle_next(engine, now, wants_turn, &wake))
		return;
	if (engine->has_turn && !engine->is_unlimited && !engine->share && !engine->fronts && !wants_turn) {
		uint64_t end = idle_end(engine);
		if (!sim_state_header()->idle_ns || end <= now) {
			pass_turn(engine, end, false);
			return;
		}
		wake = wake < end ? wake : end;
	}
	if (wants_turn && !engine->has_turn && !engine->is_unlimited) {
		ask_for_turn(engine, now);
		if (engine->has_turn || engine->is_unlimited)
			return;
	}
	sleep_until(engine, wake, now, wants_turn);
}

static _Thread_local bool is_engine;

bool sim_engine_is_this(void)
{
	return is_engine;
}

static void *engine_thread(void *argument)
{
	struct sim_engine *engine = argument;

	prctl(PR_SET_TIMERSLACK, 1000ul);
	prctl(PR_SET_NAME, "vgpu-sim");
	is_engine = true;
	sim_realtime_stay();
	sim_clock_thread_adopt(engine->thread);
	pthread_mutex_lock(&sim_driver.lock);
	while (engine->pending || engine->context->alive)
		step(engine);
	/* The last work may have ended in the step before the engine would have passed the card on. */
	if (engine->has_turn && !engine->is_unlimited)
		pass_turn(engine, sim_state_header()->idle_ns ? sim_clock_now() : idle_end(engine), false);
	engine->is_running = false;
	pthread_mutex_unlock(&sim_driver.lock);
	return NULL;
}

bool sim_engine_start(struct sim_engine *engine)
{
	sigset_t all, before;
	pthread_t id;

	if (engine->is_running)
		return true;
	/* The application's own threads must handle its signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	engine->thread = sim_clock_thread_announce();
	engine->is_running = pthread_create(&id, NULL, engine_thread, engine) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (engine->is_running)
		pthread_detach(id);
	else
		sim_clock_thread_withdraw(engine->thread);
	return engine->is_running;
}

/* See compute/launch.h. */
#include "compute/launch.h"

#include <pthread.h>
#include <stdatomic.h>

#include "compute/account.h"
#include "compute/batch_complete.h"
#include "compute/container_slice.h"
#include "compute/poller.h"
#include "compute/releaser.h"
#include "compute/schedule.h"
#include "compute/semaphores.h"
#include "compute/throttle.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "shared/guard.h"
#include "shared/limits.h"

/* The legacy default stream has two names. The per-thread default stream is a different one in each thread. */
static void name_stream(struct launch *launch, CUstream stream, enum stream_meaning meaning)
{
	if (!stream)
		stream = meaning == STREAM_PER_THREAD ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	launch->stream = stream;
	/* Streams have even keys, and 1 is the legacy one. */
	launch->stream_key =
		stream == CU_STREAM_PER_THREAD ? guard_number_of(launch->thread) : (uint64_t)(uintptr_t)stream;
}

static void after_fork(void)
{
	batch_complete_reset();
	container_slice_reset();
	token_bucket_reset_all();
	poller_reset();
	releaser_reset();
	stream_capture_reset();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

/* Whether the launch is to be accounted at all. */
static bool find_account(struct launch *launch)
{
	launch->context = contexts_current(launch->thread);
	if (!launch->context)
		return false;
	launch->bucket = launch->context->bucket;
	return !schedule_is_unlimited(launch->bucket) && !stream_capture_has(launch->stream);
}

static void describe(struct launch *launch, const void *function, uint64_t blocks)
{
	launch->opened = launch->closes = launch->is_held = launch->is_member = launch->may_wait = false;
	launch->kind = estimates_find((uint64_t)(uintptr_t)function, blocks);
	batch_estimate(launch);
}

/* Whether the present limits limit no card's time: two loads for each launch, and more after a change of the limits. */
static bool nothing_is_limited(void)
{
	enum { LIMITED = 1 };
	static _Atomic uint64_t known; /* the sequence of the limits, doubled, and the answer for it */
	uint64_t sequence = limits_sequence() << 1;
	uint64_t last = atomic_load_explicit(&known, memory_order_relaxed);

	if (!last || (last & ~(uint64_t)LIMITED) != sequence) {
		last = sequence | (limits_have_cores() ? LIMITED : 0);
		atomic_store_explicit(&known, last, memory_order_relaxed);
	}
	return !(last & LIMITED);
}

bool compute_launch_is_limited(void)
{
	return limits_state() == LIMITS_PRESENT && !nothing_is_limited();
}

void compute_launch_begin(struct compute_launch *call, const void *function, uint64_t blocks, CUstream stream,
			  enum stream_meaning meaning)
{
	struct launch *launch = &call->launch;

	launch->context = NULL;
	call->entered = false;
	if (!compute_launch_is_limited())
		return;
	launch->thread = &guard_this_thread;
	call->entered = guard_enter_thread(launch->thread);
	if (!call->entered)
		return;
	name_stream(launch, stream, meaning);
	if (!find_account(launch)) {
		launch->context = NULL;
		return;
	}
	describe(launch, function, blocks);
	uint64_t now = clock_now();
	if (batch_join_reserved(launch, now))
		return;
	uint64_t asked = now;
	now = throttle_launch(launch, now);
	if (!launch->is_held)
		batch_join(launch, asked, now);
	if (launch->is_held) /* before the call: in a full stream it waits for the release */
		releaser_needed(launch->context);
}

/* Begins one launch of a group, on its stream's device. Only the first one waits; the others follow at once. */
static void begin_member(struct compute_launch *call, const CUDA_LAUNCH_PARAMS *member, bool is_first)
{
	struct launch *launch = &call->launch;
	CUcontext context = NULL, before;

	launch->context = NULL;
	launch->thread = &guard_this_thread;
	if (REAL(cuStreamGetCtx, member->hStream, &context) != CUDA_SUCCESS ||
	    REAL(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
		return;
	name_stream(launch, member->hStream, STREAM_LEGACY);
	if (find_account(launch)) {
		describe(launch, member->function,
			 compute_launch_blocks(member->gridDimX, member->gridDimY, member->gridDimZ));
		uint64_t asked = clock_now(), now = asked;
		launch->is_member = true;
		if (is_first)
			now = throttle_launch(launch, now);
		else
			account_reserve(launch->bucket, launch->estimate, estimates_known(launch->kind), now);
		batch_join(launch, asked, now);
		if (launch->is_held)
			releaser_needed(launch->context);
	} else {
		launch->context = NULL;
	}
	(void)REAL(cuCtxPopCurrent_v2, &before);
}

bool compute_launch_begin_group(struct compute_launch *calls, const CUDA_LAUNCH_PARAMS *list, unsigned int count)
{
	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return false;
	for (unsigned int i = 0; i < count; i++) {
		calls[i].entered = false;
		begin_member(&calls[i], &list[i], i == 0);
	}
	return true;
}

static void end_launch(struct launch *launch, CUresult result)
{
	if (!launch->context || !batch_joined(launch, result == CUDA_SUCCESS))
		return;
	poller_needed();
	if (launch->is_held || LOAD(launch->bucket->is_awaited) || !batch_looks_for_quiet(launch->context))
		return;
	uint64_t now = clock_now();
	poller_look_by(batch_quiet_at(launch->context, now, now + launch->estimate));
}

void compute_launch_end_group(struct compute_launch *calls, unsigned int count, CUresult result)
{
	for (unsigned int i = 0; i < count; i++)
		end_launch(&calls[i].launch, result);
	guard_leave();
}

CUresult compute_launch_end_accounted(struct compute_launch *call, CUresult result)
{
	end_launch(&call->launch, result);
	guard_leave_thread(call->launch.thread);
	return result;
}

static uint64_t stream_key_of(CUstream stream, enum stream_meaning meaning)
{
	struct launch launch = {.thread = &guard_this_thread};

	name_stream(&launch, stream, meaning);
	return launch.stream_key;
}

bool compute_launch_waiting(CUstream stream, enum stream_meaning meaning)
{
	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return false;
	struct compute_context *context = contexts_current_if_any(&guard_this_thread);
	if (context)
		batch_waiting(context, meaning == STREAMS_ALL ? ALL_STREAMS : stream_key_of(stream, meaning));
	guard_leave();
	return true;
}

void compute_launch_waited(CUstream stream, enum stream_meaning meaning)
{
	if (!guard_enter())
		return;
	struct compute_context *context = contexts_current_if_any(&guard_this_thread);
	if (context && batch_waited(context, meaning == STREAMS_ALL ? ALL_STREAMS : stream_key_of(stream, meaning)))
		poller_look_by(batch_complete_all()); /* the container may leave some microseconds from now */
	guard_leave();
}

bool compute_launch_interrupt(CUstream stream, enum stream_meaning meaning, bool waits, uint64_t bytes)
{
	struct launch launch;

	if (!compute_launch_is_limited() || !guard_enter())
		return false;
	launch.thread = &guard_this_thread;
	name_stream(&launch, stream, meaning);
	launch.context = contexts_current_if_any(launch.thread);
	if (launch.context)
		batch_interrupt(launch.context, launch.stream_key, launch.stream, waits, bytes);
	guard_leave();
	return true;
}

void compute_launch_waits_for_event(CUstream stream, enum stream_meaning meaning)
{
	if (!compute_launch_is_limited() || !guard_enter())
		return;
	struct compute_context *context = contexts_current_if_any(&guard_this_thread);
	if (context && LOAD(context->copied) >= BATCH_COPY_WORTH)
		batch_waits_for_copy(context, stream_key_of(stream, meaning));
	guard_leave();
}

void compute_launch_forget_stream(CUstream stream, enum stream_meaning meaning)
{
	struct launch launch;

	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return;
	launch.thread = &guard_this_thread;
	name_stream(&launch, stream, meaning);
	launch.context = contexts_current_if_any(launch.thread);
	if (launch.context)
		batch_forget(launch.context, launch.stream_key, launch.stream);
	guard_leave();
}

__attribute__((destructor)) static void at_exit(void)
{
	semaphores_release_all();
	batch_complete_stop();
}

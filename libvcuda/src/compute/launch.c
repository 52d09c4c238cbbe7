/* See compute/launch.h. */
#include "compute/launch.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "compute/poller.h"
#include "compute/throttle.h"
#include "driver/cuda_table.h"
#include "driver/stream_capture.h"
#include "memory/charge.h"
#include "shared/limits_file.h"

/* The legacy default stream has two names. The per-thread default stream is a different one in each thread. */
static void name_stream(struct launch *launch, CUstream stream, enum stream_meaning meaning)
{
	if (!stream)
		stream = meaning == STREAM_PER_THREAD ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	launch->stream = stream;
	launch->lane = stream == CU_STREAM_PER_THREAD ? (uint64_t)(uintptr_t)launch->thread : (uint64_t)(uintptr_t)stream;
}

static void after_fork(void)
{
	batches_reset();
	buckets_reset();
	poller_reset();
	captures_reset();
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

/* Whether the launch is to be accounted at all. */
static bool find_account(struct launch *launch)
{
	launch->context = batches_context(launch->thread);
	if (!launch->context)
		return false;
	launch->bucket = batches_bucket(launch->context);
	return !bucket_is_open(launch->bucket) && !captures_has(launch->stream);
}

static void describe(struct launch *launch, const void *function, uint64_t blocks)
{
	launch->kind = estimates_find((uint64_t)(uintptr_t)function, blocks);
	/* In whole units of `in_flight`, so that a batch subtracts exactly what its launches added. */
	launch->estimate = (estimates_ns(launch->kind) / VGPU_USAGE_TIME_UNIT + 1) * VGPU_USAGE_TIME_UNIT;
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

bool cores_watch(void)
{
	return limits_state() == LIMITS_PRESENT && !nothing_is_limited();
}

void cores_begin(struct core_launch *call, const void *function, uint64_t blocks, CUstream stream,
		 enum stream_meaning meaning)
{
	struct launch *launch = &call->launch;

	launch->context = NULL;
	call->entered = false;
	if (!cores_watch())
		return;
	launch->thread = &this_thread;
	call->entered = thread_enter(launch->thread);
	if (!call->entered)
		return;
	name_stream(launch, stream, meaning);
	if (!find_account(launch)) {
		launch->context = NULL;
		return;
	}
	launch->opened = launch->closes = launch->may_wait = false;
	describe(launch, function, blocks);
	uint64_t now = clock_now();
	if (!batches_join_reserved(launch, now))
		batches_join(launch, gate_pass(launch, now));
}

/* Begins one launch of a group, on its stream's device. Only the first one waits; the others follow at once. */
static void begin_member(struct core_launch *call, const CUDA_LAUNCH_PARAMS *member, bool is_first)
{
	struct launch *launch = &call->launch;
	CUcontext context = NULL, before;

	launch->context = NULL;
	launch->thread = &this_thread;
	if (REAL(cuStreamGetCtx, member->hStream, &context) != CUDA_SUCCESS ||
	    REAL(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
		return;
	name_stream(launch, member->hStream, STREAM_LEGACY);
	if (find_account(launch)) {
		launch->opened = launch->closes = launch->may_wait = false;
		describe(launch, member->function, cores_blocks(member->gridDimX, member->gridDimY, member->gridDimZ));
		uint64_t now = clock_now();
		if (is_first)
			now = gate_pass(launch, now);
		else
			bucket_force(launch->bucket, launch->estimate, estimates_known(launch->kind), now);
		batches_join(launch, now);
	} else {
		launch->context = NULL;
	}
	(void)REAL(cuCtxPopCurrent_v2, &before);
}

bool cores_begin_group(struct core_launch *calls, const CUDA_LAUNCH_PARAMS *list, unsigned int count)
{
	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return false;
	for (unsigned int i = 0; i < count; i++) {
		calls[i].entered = false;
		begin_member(&calls[i], &list[i], i == 0);
	}
	return true;
}

void cores_end_group(struct core_launch *calls, unsigned int count, CUresult result)
{
	for (unsigned int i = 0; i < count; i++)
		if (calls[i].launch.context)
			batches_joined(&calls[i].launch, result == CUDA_SUCCESS);
	guard_leave();
}

CUresult cores_end_accounted(struct core_launch *call, CUresult result)
{
	if (call->launch.context)
		batches_joined(&call->launch, result == CUDA_SUCCESS);
	thread_leave(call->launch.thread);
	return result;
}

static uint64_t lane_named(CUstream stream, enum stream_meaning meaning)
{
	struct launch launch = {.thread = &this_thread};

	name_stream(&launch, stream, meaning);
	return launch.lane;
}

bool cores_waiting(CUstream stream, enum stream_meaning meaning)
{
	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return false;
	batches_waiting(meaning == STREAMS_ALL ? ALL_LANES : lane_named(stream, meaning));
	guard_leave();
	return true;
}

void cores_waited(CUstream stream, enum stream_meaning meaning)
{
	if (!guard_enter())
		return;
	batches_waited(meaning == STREAMS_ALL ? ALL_LANES : lane_named(stream, meaning));
	guard_leave();
}

bool cores_interrupt(CUstream stream, enum stream_meaning meaning, bool waits)
{
	struct launch launch;

	if (!cores_watch() || !guard_enter())
		return false;
	launch.thread = &this_thread;
	name_stream(&launch, stream, meaning);
	batches_interrupt(launch.lane, launch.stream, waits);
	guard_leave();
	return true;
}

void cores_forget(CUstream stream, enum stream_meaning meaning)
{
	struct launch launch;

	if (limits_state() != LIMITS_PRESENT || !guard_enter())
		return;
	launch.thread = &this_thread;
	name_stream(&launch, stream, meaning);
	batches_forget(launch.lane, launch.stream);
	guard_leave();
}

__attribute__((destructor)) static void at_exit(void)
{
	batches_stop();
}

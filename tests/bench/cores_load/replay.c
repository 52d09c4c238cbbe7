/*
 * A recorded program, over and over: its calls with their gaps, on as many threads as it had. What a call waited for on
 * the card it waits for again. cores_traces.py writes the file, one call a line:
 *
 *   thread, letter (see make_call), stream, other stream, ns of the host before it, ns on the card, operations, bytes
 */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

#define THREADS 64
#define STREAMS 64
#define GRAPHS 4096
#define APART 100000 /* ns between two looks of a thread that has come to the end of the recording first */

struct call {
	unsigned thread, stream, other, operations;
	char kind;
	uint64_t gap, card, bytes;
};

static struct call *calls;
static size_t count;
static unsigned threads, streams, graphs;
static uint64_t most_bytes;
static uint32_t rounds[THREADS];

static CUstream stream_of[STREAMS];
static struct {
	unsigned operations;
	uint64_t card;
	CUgraphExec graph;
} graph_of[GRAPHS];
static CUdeviceptr memory; /* two buffers */
static void *pinned, *pageable;

#define CALL(name, ...) ((CUresult (*)())load_symbol(#name))(__VA_ARGS__)

void load_replay_open(const char *path)
{
	FILE *file = fopen(path, "r");
	struct call one;

	if (!file)
		load_fail(path, 0);
	while (fscanf(file, "%u %c %u %u %lu %lu %u %lu", &one.thread, &one.kind, &one.stream, &one.other, &one.gap,
		      &one.card, &one.operations, &one.bytes) == 8) {
		if (one.thread >= THREADS || one.stream >= STREAMS || one.other >= STREAMS)
			load_fail(path, (long)count);
		calls = realloc(calls, (count + 1) * sizeof *calls);
		calls[count++] = one;
		threads = one.thread + 1 > threads ? one.thread + 1 : threads;
		streams = one.stream + 1 > streams ? one.stream + 1 : streams;
		most_bytes = one.bytes > most_bytes ? one.bytes : most_bytes;
	}
	if (!count || !feof(file))
		load_fail(path, (long)count);
	fclose(file);
}

unsigned load_replay_threads(void)
{
	return threads;
}

static CUgraphExec make_graph(const struct call *call)
{
	CUgraphExec made;
	void *graph;

	LOAD_CHECK(CALL(cuStreamBeginCapture_v2, stream_of[call->stream], 0));
	for (unsigned i = 0; i < call->operations; i++)
		load_launch(stream_of[call->stream], call->card / call->operations);
	LOAD_CHECK(CALL(cuStreamEndCapture, stream_of[call->stream], &graph));
	LOAD_CHECK(CALL(cuGraphInstantiateWithFlags, &made, graph, 0ull));
	return made;
}

static CUgraphExec graph_for(const struct call *call)
{
	unsigned i = 0;

	while (i < graphs && (graph_of[i].operations != call->operations || graph_of[i].card != call->card))
		i++;
	return graph_of[i].graph;
}

/* The caller has made the context current. */
void load_replay_prepare(void)
{
	for (unsigned i = 0; i < streams; i++)
		LOAD_CHECK(CALL(cuStreamCreate, &stream_of[i], 1));
	for (size_t i = 0; i < count; i++) {
		if (calls[i].kind != 'g' || graph_for(&calls[i]))
			continue;
		if (graphs == GRAPHS - 1)
			load_fail("graphs", (long)graphs);
		graph_of[graphs].operations = calls[i].operations;
		graph_of[graphs].card = calls[i].card;
		graph_of[graphs++].graph = make_graph(&calls[i]);
	}
	if (!most_bytes)
		return;
	LOAD_CHECK(CALL(cuMemAlloc_v2, &memory, (size_t)(2 * most_bytes)));
	LOAD_CHECK(CALL(cuMemAllocHost_v2, &pinned, (size_t)most_bytes));
	pageable = calloc(1, most_bytes);
}

static void make_call(const struct call *call, CUevent event)
{
	CUstream stream = stream_of[call->stream];
	size_t bytes = (size_t)call->bytes;

	switch (call->kind) {
	case 'k': load_launch(stream, call->card); return;
	case 'g': LOAD_CHECK(CALL(cuGraphLaunch, graph_for(call), stream)); return;
	case 'm': LOAD_CHECK(CALL(cuMemsetD8Async, memory, (unsigned char)0, bytes, stream)); return;
	case 'H': /* the allocator of pinned memory asks for an event behind the copy */
		LOAD_CHECK(CALL(cuMemcpyHtoDAsync_v2, memory, pinned, bytes, stream));
		LOAD_CHECK(CALL(cuEventRecord, event, stream));
		return;
	case 'D':
		LOAD_CHECK(CALL(cuMemcpyDtoHAsync_v2, pinned, memory, bytes, stream));
		LOAD_CHECK(CALL(cuEventRecord, event, stream));
		return;
	case 'h': LOAD_CHECK(CALL(cuMemcpyHtoDAsync_v2, memory, pageable, bytes, stream)); return;
	case 'd': LOAD_CHECK(CALL(cuMemcpyDtoHAsync_v2, pageable, memory, bytes, stream)); return;
	case 'I': LOAD_CHECK(CALL(cuMemcpyDtoDAsync_v2, memory + bytes, memory, bytes, stream)); return;
	case 'q': (void)CALL(cuEventQuery, event); return;
	case 'Q': (void)CALL(cuStreamQuery, stream); return;
	case 'r': LOAD_CHECK(CALL(cuEventRecord, event, stream)); return;
	case 'e':
		LOAD_CHECK(CALL(cuEventRecord, event, stream));
		LOAD_CHECK(CALL(cuEventSynchronize, event));
		return;
	case 's': LOAD_CHECK(CALL(cuStreamSynchronize, stream)); return;
	case 'S': LOAD_CHECK(CALL(cuCtxSynchronize, 0)); return;
	case 'w':
		LOAD_CHECK(CALL(cuEventRecord, event, stream_of[call->other]));
		LOAD_CHECK(CALL(cuStreamWaitEvent, stream, event, 0));
		return;
	default: load_fail("call", call->kind);
	}
}

/* The threads begin the recording anew together. */
static void wait_for_others(uint32_t round)
{
	for (unsigned i = 0; i < threads; i++)
		while (__atomic_load_n(&rounds[i], __ATOMIC_ACQUIRE) < round)
			load_clock->sleep_until(load_clock->now() + APART);
}

void load_replay(unsigned thread)
{
	CUevent event;

	LOAD_CHECK(CALL(cuEventCreate, &event, 2)); /* without timing */
	for (;;) {
		uint64_t began = load_clock->now();
		for (size_t i = 0; i < count; i++) {
			if (calls[i].thread != thread)
				continue;
			if (calls[i].gap)
				load_clock->sleep_until(load_clock->now() + calls[i].gap);
			make_call(&calls[i], event);
		}
		__atomic_store_n(&rounds[thread], rounds[thread] + 1, __ATOMIC_RELEASE);
		wait_for_others(rounds[thread]);
		if (!thread)
			load_note_round(began);
	}
}

/*
 * The structures of streams and events, for the files that queue, capture and wait, and the functions that lock a
 * stream's handle. Submitting work is in cuda/graph/work.h, the queues in cuda/work/queue.h.
 */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include "cuda/work/capture.h"
#include "cuda/work/submit.h"

struct sim_stream {
	struct sim_object object;
	unsigned flags;
	int priority;
	bool is_legacy;
	const void *owner; /* of a thread's own stream: what the thread remembers it by */
	bool is_ending; /* the handle was destroyed */
	struct sim_place place;
	struct sim_engine *engine;
	struct sim_stream *next; /* next stream of the context, also those without a handle */
	struct sim_work *head, *tail;
	unsigned launches; /* launches in the queue */
	uint64_t turn;     /* of its last kernel, in the engine's count */
	uint64_t last_end; /* when its last work ended */
};

struct sim_event {
	struct sim_object object;
	unsigned flags;
	struct sim_moment *moment; /* the last recorded moment; NULL: never recorded */
	struct sim_place place;    /* where it was recorded in a capture */
	struct sim_shared *shared; /* shared with other processes; see cuda/work/ipc_event.c */
};

#define SIM_STREAM_NON_BLOCKING 1u

/* For the simulator's own use: a non-blocking stream with the priority of `like`, and an event without timing. */
CUstream sim_stream_new(struct sim_context *context, CUstream like);
CUevent sim_event_new(struct sim_context *context);
CUresult sim_event_destroy(CUevent event);
/* frees what the context's events hold before they end; under the lock, like the next two functions */
void sim_event_drop_all(struct sim_context *context);
/* Gives the event a new moment, which the work shares. */
CUresult sim_event_renew(struct sim_event *event, struct sim_work *work);
void sim_event_moment_drop(struct sim_moment *moment);

CUresult cuStreamDestroy_v2(CUstream stream);

/* Locks and finds the stream of a handle, which may be NULL, the legacy or the per-thread stream. */
CUresult sim_stream_lock(CUstream handle, struct sim_stream **stream);
/* The same for its place in a capture. The default stream has none. */
CUresult sim_stream_lock_place(CUstream stream, struct sim_place **place);
bool sim_stream_is_legacy(CUstream stream);

#endif

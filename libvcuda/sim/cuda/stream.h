/* Streams and events, behind their handles. */
#ifndef CUDA_STREAM_H
#define CUDA_STREAM_H

#include "cuda/graph.h"

struct sim_stream {
	struct sim_object object;
	unsigned flags;
	int priority;
	bool is_legacy;
	bool is_ending; /* its handle is gone */
	struct sim_place place;
	struct sim_engine *engine;
	struct sim_stream *next; /* of the context, those without a handle included */
	struct sim_work *head, *tail;
	unsigned launches; /* in the queue */
	uint64_t turn;     /* of its last kernel, by the engine's count */
	uint64_t last_end; /* when its last work was done */
};

struct sim_event {
	struct sim_object object;
	unsigned flags;
	struct sim_moment *moment; /* when it was recorded last; NULL: never */
	struct sim_place place;    /* recorded in a capture */
	struct sim_shared *shared; /* with other processes; see cuda/ipc_event.c */
};

#define SIM_STREAM_NON_BLOCKING 1u

/* Of the simulator's own: a non-blocking stream with the other's priority, and an event that is not timed. */
CUstream sim_stream_new(struct sim_context *context, CUstream like);
CUevent sim_event_new(struct sim_context *context);
void sim_events_of(struct sim_context *context); /* drop what they hold: they are about to go; under the lock */

CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuEventDestroy_v2(CUevent event);

/* Lock and find the stream behind a handle, which may be NULL, legacy or per-thread. */
CUresult sim_lock_stream(CUstream handle, struct sim_stream **stream);

#endif

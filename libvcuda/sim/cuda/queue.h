/*
 * The queues behind the streams, and the engine that carries them out: one thread per context that has had work.
 *
 * The engine lives in the model's time. It handles beginnings and ends in the order of their times and sleeps until
 * the next one; when it wakes late it catches up, so that how long things take does not depend on the machine that
 * simulates. All under sim_driver.lock; effects run without it.
 */
#ifndef CUDA_QUEUE_H
#define CUDA_QUEUE_H

#include "cuda/stream.h"
#include "state/turn.h"

/* Copies to the card and copies from it run side by side, those of one kind one after the other. */
enum { SIM_COPY_TO_CARD, SIM_COPY_FROM_CARD, SIM_COPY_ENGINES };

struct sim_engine {
	struct sim_context *context;
	unsigned number;         /* of the context in this process */
	unsigned card;
	bool is_running;         /* there is a thread, */
	uint32_t thread;         /* of this number in virtual time */
	bool waits_for_turn;     /* asleep on the process' word, not on `work` */
	pthread_cond_t work;     /* the thread: there may be something to do */
	pthread_cond_t progress; /* everybody else: something is done */
	unsigned waiting;        /* threads that wait for progress */
	struct sim_stream *streams;
	uint64_t pending;        /* works in all streams */
	uint64_t sequence;       /* of the last work */
	bool has_turn;
	bool is_unlimited;       /* the shared state is broken: no turns any more */
	struct sim_slice slice;
	uint64_t begun;          /* kernels, ever */
	uint64_t copies_end[SIM_COPY_ENGINES]; /* when the copies that were begun are done */
	unsigned share;          /* of the card that running kernels fill, in 1/1000 */
	uint64_t freed;          /* when that became less */
	uint64_t busy_since;     /* when kernels began to run; 0: none does */
};

/* Under the lock. */
struct sim_engine *sim_engine_of(struct sim_context *context);
void sim_engine_wake(struct sim_engine *engine);
bool sim_engine_start(struct sim_engine *engine);
bool sim_engine_is_this(void); /* the calling thread is an engine's */
void sim_engines_wake(void); /* an event was reached: somebody may wait for it */

/* The stream's handle goes; the stream itself when it has carried out what it holds. */
void sim_queue_end(struct sim_stream *stream);
/*
 * Wait until what the streams hold now that can use the context's memory is done; NULL: those of all contexts. Under the
 * lock, which is given up if there is something to wait for. What an engine itself carries out does not wait.
 */
void sim_queue_settle(const struct sim_context *context);
/* Wait until nothing is left of a context that ends; and say so. */
void sim_queue_wait_ended(struct sim_context *context);
void sim_queue_ended(struct sim_context *context);
/* Wait until the context's streams are empty. */
void sim_queue_drain(struct sim_context *context);
/* Forget the streams of a context that ends; they are empty. */
void sim_queues_of(struct sim_context *context);
/* Take the first work off a stream and drop what it holds. */
void sim_queue_finish(struct sim_engine *engine, struct sim_stream *stream, uint64_t time);

CUresult sim_queue_wait_moment(struct sim_moment *moment);
CUresult sim_event_renew(struct sim_event *event, struct sim_work *work);

#endif

/*
 * The queues of the streams, and the engine that carries out their work: one thread per context that has had work.
 *
 * The engine lives in the model's time. It handles beginnings and ends in the order of their times and sleeps until the
 * next one. An engine that wakes late catches up, so that durations do not depend on the machine that runs the
 * simulator. Everything here is under sim_driver.lock; the effects of work run without it.
 */
#ifndef CUDA_QUEUE_H
#define CUDA_QUEUE_H

#include "cuda/work/stream.h"
#include "state/turn.h"

/* Copies to the card and copies from the card run side by side; copies of one direction follow one another. */
enum { SIM_COPY_TO_CARD, SIM_COPY_FROM_CARD, SIM_COPY_ENGINES };

struct sim_engine {
	struct sim_context *context;
	struct sim_engine *next; /* of this process */
	unsigned number;         /* of the context in this process */
	unsigned card;
	bool is_running;         /* a thread exists */
	uint32_t thread;         /* the thread's number in virtual time */
	bool waits_for_turn;     /* the thread waits on the process' word, not on `work` */
	pthread_cond_t work;     /* wakes the thread: there may be something to do */
	pthread_cond_t progress; /* wakes all other threads: some work is done */
	unsigned waiting;        /* threads that wait for progress */
	struct sim_stream *streams;
	uint64_t pending;        /* works in all streams */
	uint64_t sequence;       /* of the last work */
	bool has_turn;
	bool is_unlimited;       /* the shared state is damaged: time slices no longer apply */
	struct sim_slice slice;
	uint64_t begun;          /* kernels begun since the start */
	uint64_t copies_end[SIM_COPY_ENGINES]; /* for each direction, when the copies that have begun end */
	unsigned share;          /* part of the card that running kernels fill, in 1/1000 */
	unsigned fronts;         /* other running works that need the turn */
	uint64_t freed;          /* when a work that needs the turn last ended */
	uint64_t busy_since;     /* when kernels began to run; 0: none runs */
};

/* Under the lock, like all that follows but sim_finish_perform. */
struct sim_engine *sim_engines_of(struct sim_context *context); /* made with the context's first stream */
struct sim_engine *sim_engines_first(void);
void sim_engines_wake(struct sim_engine *engine);
void sim_engines_wake_all(void); /* an event was reached: other engines may wait for it */
void sim_engines_wait(struct sim_engine *engine); /* for progress */
bool sim_engine_start(struct sim_engine *engine);
bool sim_engine_is_this(void); /* the calling thread is an engine's */

/* Carries out the work's effect; called without the lock. */
void sim_finish_perform(struct sim_work *work);
/* Takes the first work off a stream and frees what it holds. */
void sim_finish_work(struct sim_engine *engine, struct sim_stream *stream, uint64_t time);
/* Ends the stream's handle. The stream itself ends when its work is done. */
void sim_finish_stream(struct sim_stream *stream);

/*
 * Waits until the work that streams hold now and that may use the context's memory is done; NULL: the streams of all
 * contexts. The lock is released while there is something to wait for. A call that an engine itself carries out does
 * not wait.
 */
void sim_queue_settle(const struct sim_context *context);
/* Waits until the context's streams are empty. */
void sim_queue_drain(struct sim_context *context);
/* Forgets the streams of a context that ends; they are empty. */
void sim_queue_forget_all(struct sim_context *context);
CUresult sim_queue_wait_moment(struct sim_moment *moment);

#endif

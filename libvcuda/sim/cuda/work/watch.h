/*
 * Moments that come from outside the queues: a host thread, another process, or work of another stream changes memory.
 * A stream that waits for such a moment checks when it gets there; after that one thread of the process checks until
 * the condition is met.
 */
#ifndef CUDA_WATCH_H
#define CUDA_WATCH_H

#include "cuda/work/submit.h"

/* Whether the condition is met. Called without the lock, by one thread at a time. */
typedef bool (*sim_condition)(void *argument);

/* The stream waits for the condition from here on. `argument` is freed when the condition is met, or on failure. */
CUresult sim_watch(CUstream stream, sim_condition condition, void *argument);

#endif

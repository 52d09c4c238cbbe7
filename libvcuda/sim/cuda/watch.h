/*
 * Moments that somebody outside the queues brings about: a host thread, another process, or work of another stream
 * changes memory. A stream that waits for such a moment looks when it gets there, then one thread of the process does
 * until the condition is met.
 */
#ifndef CUDA_WATCH_H
#define CUDA_WATCH_H

#include "cuda/work.h"

/* Is it met? Called without the lock, by several threads in turn. */
typedef bool (*sim_condition)(void *argument);

/* The stream waits for the condition from here on. `argument` is freed when it is met, or when this fails. */
CUresult sim_watch(CUstream stream, sim_condition condition, void *argument);

#endif

/*
 * One launch against the container's share of the card's time: what every launching wrapper does around the driver's
 * call. Nothing happens, and nothing costs, without limits, on an exclusive card, inside a capture (what is captured
 * is accounted when its graph is launched) and for calls that the driver makes itself.
 */
#ifndef VCUDA_CORES_H
#define VCUDA_CORES_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/batch.h"
#include "cuda_abi.h"

/* How a wrapper's stream 0 is meant; all streams of the thread. */
enum stream_meaning { STREAM_LEGACY, STREAM_PER_THREAD, STREAMS_ALL };

struct core_launch {
	struct launch launch;
	bool entered;
};

/* Whether any card's time is limited now: two loads. */
bool cores_watch(void);

/* May wait. `function` and `blocks` say what is launched: a function and its grid, or a graph. */
void cores_begin(struct core_launch *call, const void *function, uint64_t blocks, CUstream stream,
		 enum stream_meaning meaning);

static inline uint64_t cores_blocks(uint64_t x, uint64_t y, uint64_t z)
{
	return x * y * z;
}

/* `result`, when it is over. */
CUresult cores_end_accounted(struct core_launch *call, CUresult result);

static inline CUresult cores_end(struct core_launch *call, CUresult result)
{
	return call->entered ? cores_end_accounted(call, result) : result;
}

/* For launches that the driver makes together, each on its stream's device: one wait for all. False: not accounted. */
bool cores_begin_group(struct core_launch *calls, const CUDA_LAUNCH_PARAMS *list, unsigned int count);
void cores_end_group(struct core_launch *calls, unsigned int count, CUresult result);

/* The thread is about to wait for its work in a stream; if that is of interest, has waited. */
bool cores_waiting(CUstream stream, enum stream_meaning meaning);
void cores_waited(CUstream stream, enum stream_meaning meaning);

/*
 * What comes next in the stream takes time without taking the card's: a copy over the bus, a wait for another stream, or,
 * if it `waits` for the program, a function of the host or a wait for a value. False: of no interest.
 */
bool cores_interrupt(CUstream stream, enum stream_meaning meaning, bool waits);

/* A stream is about to be destroyed, or to be captured. */
void cores_forget(CUstream stream, enum stream_meaning meaning);

#endif

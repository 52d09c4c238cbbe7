/*
 * One launch, held to the container's share of the card's time: what every launching wrapper does around the driver's
 * call.
 *
 * Belongs here: whether a launch is accounted, and the order of the steps. Not where it waits (compute/throttle.h), nor
 * the batches (compute/batch.h). A launch is not accounted, and costs nothing, without limits, on an exclusive card,
 * inside a capture (the work is accounted when its graph is launched), and in calls that the driver makes itself.
 */
#ifndef VCUDA_CORES_H
#define VCUDA_CORES_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/batch.h"
#include "cuda_abi.h"

/* What a wrapper means by stream 0. STREAMS_ALL: all streams of the thread. */
enum stream_meaning { STREAM_LEGACY, STREAM_PER_THREAD, STREAMS_ALL };

struct core_launch {
	struct launch launch;
	bool entered;
};

/* Whether any card's time is limited now. It costs two loads. */
bool cores_watch(void);

/* Begins a launch, and may wait. `function` and `blocks` identify it: a function and its grid, or a graph. */
void cores_begin(struct core_launch *call, const void *function, uint64_t blocks, CUstream stream,
		 enum stream_meaning meaning);

static inline uint64_t cores_blocks(uint64_t x, uint64_t y, uint64_t z)
{
	return x * y * z;
}

/* Ends an accounted launch. Returns `result`. */
CUresult cores_end_accounted(struct core_launch *call, CUresult result);

static inline CUresult cores_end(struct core_launch *call, CUresult result)
{
	return call->entered ? cores_end_accounted(call, result) : result;
}

/* For launches that the driver makes together, each on its stream's device: one wait for all. False: not accounted. */
bool cores_begin_group(struct core_launch *calls, const CUDA_LAUNCH_PARAMS *list, unsigned int count);
void cores_end_group(struct core_launch *calls, unsigned int count, CUresult result);

/* Called before the thread waits for its work in a stream. True: cores_waited has to follow. */
bool cores_waiting(CUstream stream, enum stream_meaning meaning);
void cores_waited(CUstream stream, enum stream_meaning meaning);

/*
 * The stream's next operation takes time, but none of the card's: a copy over the bus or a wait for another stream.
 * With `waits`, it waits for the program: a function of the host, or a wait for a value. False: nothing is accounted.
 */
bool cores_interrupt(CUstream stream, enum stream_meaning meaning, bool waits);

/* Called before a stream is destroyed or captured. */
void cores_forget(CUstream stream, enum stream_meaning meaning);

#endif

/*
 * One launch, held to the container's share of the card's time: what every launching wrapper does around the driver's
 * call.
 *
 * Belongs here: whether a launch is accounted, and the order of the steps. Not where it waits (compute/throttle.h), nor
 * the batches (compute/batch.h). A launch is not accounted, and costs nothing, without limits, on an exclusive card,
 * inside a capture (the work is accounted when its graph is launched), and in calls that the driver makes itself.
 */
#ifndef VCUDA_COMPUTE_LAUNCH_H
#define VCUDA_COMPUTE_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "compute/batch.h"
#include "cuda_abi.h"

/* What a wrapper means by stream 0. STREAMS_ALL: all streams of the thread. */
enum stream_meaning { STREAM_LEGACY, STREAM_PER_THREAD, STREAMS_ALL };

struct compute_launch {
	struct launch launch;
	bool entered;
};

/* Whether any card's time is limited now. It costs two loads. */
bool compute_launch_is_limited(void);

/* Begins a launch, and may wait. `function` and `blocks` identify it: a function and its grid, or a graph. */
void compute_launch_begin(struct compute_launch *call, const void *function, uint64_t blocks, CUstream stream,
			  enum stream_meaning meaning);

static inline uint64_t compute_launch_blocks(uint64_t x, uint64_t y, uint64_t z)
{
	return x * y * z;
}

/* Ends an accounted launch. Returns `result`. */
CUresult compute_launch_end_accounted(struct compute_launch *call, CUresult result);

static inline CUresult compute_launch_end(struct compute_launch *call, CUresult result)
{
	return call->entered ? compute_launch_end_accounted(call, result) : result;
}

/* For launches that the driver makes together, each on its stream's device: one wait for all. False: not accounted. */
bool compute_launch_begin_group(struct compute_launch *calls, const CUDA_LAUNCH_PARAMS *list, unsigned int count);
void compute_launch_end_group(struct compute_launch *calls, unsigned int count, CUresult result);

/* Called before the thread waits for its work in a stream. True: compute_launch_waited has to follow. */
bool compute_launch_waiting(CUstream stream, enum stream_meaning meaning);
void compute_launch_waited(CUstream stream, enum stream_meaning meaning);

/*
 * The stream's next operation takes time, but none of the card's: a copy over the bus or a wait for another stream.
 * With `waits`, it waits for the program: a function of the host, or a wait for a value. `bytes` of a copy, else 0.
 * False: nothing is accounted.
 */
bool compute_launch_interrupt(CUstream stream, enum stream_meaning meaning, bool waits, uint64_t bytes);

/* The stream's next operation waits for another stream, which may copy. */
void compute_launch_waits_for_event(CUstream stream, enum stream_meaning meaning);

/* Called before a stream is destroyed or captured. */
void compute_launch_forget_stream(CUstream stream, enum stream_meaning meaning);

#endif

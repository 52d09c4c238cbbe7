/*
 * Contexts, which most objects belong to.
 */
#ifndef CUDA_CONTEXT_H
#define CUDA_CONTEXT_H

#include "cuda/base/driver.h"

#define SIM_STACK_DEPTH 64

struct sim_context {
	CUdevice device;
	unsigned flags;
	unsigned version;
	bool primary;
	unsigned sm_count;       /* multiprocessors of a green context; 0: all of the card's */
	struct sim_green *green; /* its handle */
	unsigned attached; /* number of cuCtxAttach calls */
	bool alive;
	bool is_ending; /* no longer alive, but its streams still carry out their work */
	size_t limits[SIM_LIMITS];
	uint64_t extra; /* bytes on its card for stacks beyond the default size, and for streams */
	unsigned streams, most_streams; /* with handles: now, and at once so far */
	uint32_t peers; /* bit n: peer access to device n is enabled */
	struct sim_object *objects;
	struct sim_allocation *allocations;
	struct sim_engine *engine; /* carries out the work of its streams, see cuda/work/queue.h */
	struct sim_stream *legacy; /* the default stream; NULL until its first use */
};

CUresult sim_context_current(struct sim_context **context); /* ready, and a live context is current */
CUresult sim_context_take(struct sim_context *context, uint64_t bytes); /* until the context ends; under the lock */
CUresult sim_context_check(CUcontext context);              /* ready, and the context is a live one */

/* What ends with a context, and with the last one of a device: lists in cuda/entry/teardown.c. Under the lock. */
extern void (*const sim_context_ends[])(struct sim_context *context);
extern void (*const sim_context_last_ends[])(CUdevice device);

#endif

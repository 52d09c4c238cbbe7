/* Stream memory operations: a stream waits until a word of memory has a value, or writes one. */
#ifndef CUDA_MEMOP_H
#define CUDA_MEMOP_H

#include "cuda/work.h"

/* A batch, as a graph's node holds it. Batches are kept, equal ones once: many copies of a node's work share one. */
struct sim_memops {
	struct sim_memops *next;
	unsigned count;
	CUstreamBatchMemOpParams list[];
};

CUresult sim_memops_submit(CUstream stream, const struct sim_memops *batch);

#endif

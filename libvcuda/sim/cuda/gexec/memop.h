/*
 * Stream memory operations for graphs: a stream waits until a word of memory has a value, or writes one. The driver
 * calls are in cuda/gexec/memop.c.
 */
#ifndef CUDA_MEMOP_H
#define CUDA_MEMOP_H

#include "cuda/work/submit.h"

/* A batch that a graph's node uses. Equal batches are kept once, so that many copies of a node's work share one. */
struct sim_memops {
	struct sim_memops *next;
	unsigned count;
	CUstreamBatchMemOpParams list[];
};

CUresult sim_memop_submit(CUstream stream, const struct sim_memops *batch);

#endif

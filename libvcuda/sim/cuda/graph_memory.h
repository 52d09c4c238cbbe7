#ifndef CUDA_GRAPH_MEMORY_H
#define CUDA_GRAPH_MEMORY_H

#include "cuda/graph.h"

/* Before a launch: reserve what its allocation nodes need, free what an earlier launch left if the flags say so. */
CUresult sim_graph_memory_prepare(struct sim_context *context, const struct sim_step *steps, size_t count,
                                  unsigned long long flags, CUstream stream);
CUresult sim_graph_memory_reserve(struct sim_context *context, const struct sim_step *steps, size_t count);
/* What the nodes do when their time has come. */
void sim_graph_memory_alloc(const struct sim_work *work);
void sim_graph_memory_free(const struct sim_work *work);

#endif

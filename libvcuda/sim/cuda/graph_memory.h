/*
 * What launches need from the memory of allocation nodes: preparation before a launch (cuda/graph_exec.c), and the
 * allocation and the free themselves when a stream reaches the node (cuda/queue.c).
 */
#ifndef CUDA_GRAPH_MEMORY_H
#define CUDA_GRAPH_MEMORY_H

#include "cuda/graph.h"

/*
 * Before a launch: reserves what its allocation nodes need of each device. If the flags say so, frees what an earlier
 * launch left.
 */
CUresult sim_graph_memory_prepare(const struct sim_step *steps, size_t count, unsigned long long flags,
                                  CUstream stream);
CUresult sim_graph_memory_reserve(const struct sim_step *steps, size_t count);
/* Carry out an allocation node and a free node when a stream reaches them. */
void sim_graph_memory_alloc(const struct sim_work *work);
void sim_graph_memory_free(const struct sim_work *work);

#endif

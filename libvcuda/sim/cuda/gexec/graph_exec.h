/*
 * What a launch needs of a graph's allocation nodes (cuda/gexec/graph_memory_nodes.c).
 */
#ifndef CUDA_GRAPH_EXEC_H
#define CUDA_GRAPH_EXEC_H

#include "cuda/graph/graph.h"

/*
 * Before a launch: reserves what its allocation nodes need of each device. If the flags say so, frees what an earlier
 * launch left.
 */
CUresult sim_graph_memory_nodes_prepare(const struct sim_step *steps, size_t count, unsigned long long flags,
					CUstream stream);
CUresult sim_graph_memory_nodes_reserve(const struct sim_step *steps, size_t count);

#endif

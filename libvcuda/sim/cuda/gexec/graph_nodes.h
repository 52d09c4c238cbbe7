/*
 * For the calls that add nodes of each kind, and change them in their graph or in an executable graph.
 */
#ifndef CUDA_GRAPH_NODES_H
#define CUDA_GRAPH_NODES_H

#include "cuda/graph/graph.h"

/* These fill `work` from the parameters of a node. */
CUresult sim_graph_nodes_launch_from(const CUDA_KERNEL_NODE_PARAMS *parameters, bool has_kernel, struct sim_work *work);
CUresult sim_graph_nodes_fill_from(const CUDA_MEMSET_NODE_PARAMS *parameters, struct sim_work *work);

/* For the entry points of the kinds of nodes: adds a node, changes one in its graph, or in an executable graph. */
CUresult sim_graph_nodes_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			     CUresult result, const struct sim_work *work);
CUresult sim_graph_nodes_change(CUgraphNode node, CUresult result, const struct sim_work *work);
CUresult sim_graph_nodes_change_step(CUgraphExec exec, CUgraphNode node, CUresult result, const struct sim_work *work);

#endif

/*
 * The graph calls of CUDA 12: one call for nodes of every kind, and edges with data. Each kind is passed on to the call
 * of its own kind. Edges carry no data here: an edge that allows an earlier start than the node's end waits for its
 * end.
 */
#include <string.h>

#include "cuda/graph/graph.h"

#define NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count
#define STEP CUgraphExec exec, CUgraphNode node,

CUresult cuGraphAddKernelNode_v2(NODE, const CUDA_KERNEL_NODE_PARAMS *p);
CUresult cuGraphAddMemcpyNode(NODE, const CUDA_MEMCPY3D *p, CUcontext context);
CUresult cuGraphAddMemsetNode(NODE, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context);
CUresult cuGraphAddHostNode(NODE, const CUDA_HOST_NODE_PARAMS *p);
CUresult cuGraphAddChildGraphNode(NODE, CUgraph child);
CUresult cuGraphAddEmptyNode(NODE);
CUresult cuGraphAddEventRecordNode(NODE, CUevent event);
CUresult cuGraphAddEventWaitNode(NODE, CUevent event);
CUresult cuGraphAddMemAllocNode(NODE, CUDA_MEM_ALLOC_NODE_PARAMS *p);
CUresult cuGraphAddMemFreeNode(NODE, CUdeviceptr pointer);
CUresult sim_graph_condition_add(NODE, CUDA_CONDITIONAL_NODE_PARAMS *p);

CUresult cuGraphExecKernelNodeSetParams_v2(STEP const CUDA_KERNEL_NODE_PARAMS *p);
CUresult cuGraphExecMemcpyNodeSetParams(STEP const CUDA_MEMCPY3D *p, CUcontext context);
CUresult cuGraphExecMemsetNodeSetParams(STEP const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context);
CUresult cuGraphExecHostNodeSetParams(STEP const CUDA_HOST_NODE_PARAMS *p);
CUresult cuGraphExecChildGraphNodeSetParams(STEP CUgraph child);

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies, size_t *count);

static CUresult check_params(const CUgraphNodeParams *p)
{
	return p && !p->reserved0[0] && !p->reserved0[1] && !p->reserved0[2] && !p->reserved2
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGraphAddNode(NODE, CUgraphNodeParams *p)
{
	REJECT(check_params(p) != CUDA_SUCCESS);
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuGraphAddMemcpyNode(node, graph, dependencies, count, &p->memcpy.copy, p->memcpy.context);
	case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphAddMemsetNode(node, graph, dependencies, count, &p->memset, NULL);
	case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(node, graph, dependencies, count, &p->host);
	case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphAddChildGraphNode(node, graph, dependencies, count, p->graph);
	case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(node, graph, dependencies, count);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuGraphAddEventWaitNode(node, graph, dependencies, count, p->event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return cuGraphAddEventRecordNode(node, graph, dependencies, count, p->event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphAddMemAllocNode(node, graph, dependencies, count, &p->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, graph, dependencies, count, p->free);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		return sim_graph_condition_add(node, graph, dependencies, count, &p->conditional);
	default: REJECT(p->type < 0 || p->type > CU_GRAPH_NODE_TYPE_CONDITIONAL); return CUDA_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
				      const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *p)
{
	(void)data;
	return cuGraphAddNode(node, graph, dependencies, count, p);
}

SIM_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
	REJECT(check_params(p) != CUDA_SUCCESS);
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphExecKernelNodeSetParams_v2(exec, node, &p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphExecMemcpyNodeSetParams(exec, node, &p->memcpy.copy, NULL);
	case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphExecMemsetNodeSetParams(exec, node, &p->memset, NULL);
	case CU_GRAPH_NODE_TYPE_HOST: return cuGraphExecHostNodeSetParams(exec, node, &p->host);
	case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphExecChildGraphNodeSetParams(exec, node, p->graph);
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
					      const CUgraphEdgeData *data, size_t count)
{
	(void)data;
	return cuGraphAddDependencies(graph, from, to, count);
}

static CUresult clear(CUgraphEdgeData *data, const size_t *count, size_t room, CUresult result)
{
	if (result == CUDA_SUCCESS && data)
		memset(data, 0, (*count < room ? *count : room) * sizeof *data);
	return result;
}

SIM_EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
				       size_t *count)
{
	size_t room = count ? *count : 0;
	return clear(data, count, room, cuGraphGetEdges(graph, from, to, count));
}

SIM_EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies, CUgraphEdgeData *data,
						  size_t *count)
{
	size_t room = count ? *count : 0;
	return clear(data, count, room, cuGraphNodeGetDependencies(node, dependencies, count));
}

/*
 * Nodes by kind: the calls that add them to a graph, read their parameters, and change them in a graph or an
 * executable graph. Graphs and edges are in cuda/graph/graph.c, child graphs too; conditional nodes in
 * cuda/graph/graph_condition.c.
 */
#include <string.h>

#include "cuda/gexec/graph_nodes.h"
#include "cuda/work/launch.h"

CUresult sim_graph_nodes_launch_from(const CUDA_KERNEL_NODE_PARAMS *p, bool has_kernel, struct sim_work *work)
{
	REJECT(!p);
	struct sim_launch launch = {
		.function = p->func      ? p->func
			    : has_kernel ? p->kern
					 : NULL,
		.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
		.block = {p->blockDimX, p->blockDimY, p->blockDimZ},
		.shared = p->sharedMemBytes,
	};
	return sim_launch_prepare(&launch, p->kernelParams, work);
}

CUresult sim_graph_nodes_fill_from(const CUDA_MEMSET_NODE_PARAMS *p, struct sim_work *work)
{
	REJECT(!p || !p->height || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4));
	/* The range is not checked: it may belong to an allocation node and not exist yet. */
	*work = (struct sim_work){
		.type = CU_GRAPH_NODE_TYPE_MEMSET,
		.fill = {p->dst, p->pitch, p->value, p->elementSize, p->width, p->height},
	};
	return CUDA_SUCCESS;
}

static CUresult copy_from(const CUDA_MEMCPY3D *parameters, struct sim_work *work)
{
	*work = (struct sim_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	return sim_copy_call_from_3d(parameters, &work->copy);
}

static CUresult host_from(const CUDA_HOST_NODE_PARAMS *p, struct sim_work *work)
{
	REJECT(!p || !p->fn);
	*work = (struct sim_work){.type = CU_GRAPH_NODE_TYPE_HOST,
				  .host = {.function = p->fn, .argument = p->userData}};
	return CUDA_SUCCESS;
}

static CUresult event_from(int type, CUevent event, struct sim_work *work)
{
	TRY(sim_object_lock(event, SIM_EVENT));
	*work = (struct sim_work){.type = type, .event = event};
	return sim_object_unlock(CUDA_SUCCESS);
}

CUresult sim_graph_nodes_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			     CUresult result, const struct sim_work *work)
{
	if (result == CUDA_SUCCESS)
		result = sim_graph_lock(graph, dependencies, count, node);
	if (result != CUDA_SUCCESS)
		return result;
	return sim_object_unlock(sim_graph_add(graph, dependencies, count, work, node));
}

#define NODE CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count

SIM_EXPORT CUresult cuGraphAddKernelNode(NODE, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_add(node, graph, dependencies, count, sim_graph_nodes_launch_from(p, false, &work),
				   &work);
}

SIM_EXPORT CUresult cuGraphAddKernelNode_v2(NODE, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_add(node, graph, dependencies, count, sim_graph_nodes_launch_from(p, true, &work),
				   &work);
}

SIM_EXPORT CUresult cuGraphAddMemcpyNode(NODE, const CUDA_MEMCPY3D *p, CUcontext context)
{
	struct sim_work work;
	(void)context;
	return sim_graph_nodes_add(node, graph, dependencies, count, copy_from(p, &work), &work);
}

SIM_EXPORT CUresult cuGraphAddMemsetNode(NODE, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
	struct sim_work work;
	(void)context;
	return sim_graph_nodes_add(node, graph, dependencies, count, sim_graph_nodes_fill_from(p, &work), &work);
}

SIM_EXPORT CUresult cuGraphAddHostNode(NODE, const CUDA_HOST_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_add(node, graph, dependencies, count, host_from(p, &work), &work);
}

SIM_EXPORT CUresult cuGraphAddEmptyNode(NODE)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	return sim_graph_nodes_add(node, graph, dependencies, count, CUDA_SUCCESS, &work);
}

SIM_EXPORT CUresult cuGraphAddEventRecordNode(NODE, CUevent event)
{
	struct sim_work work;
	return sim_graph_nodes_add(node, graph, dependencies, count,
				   event_from(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &work), &work);
}

SIM_EXPORT CUresult cuGraphAddEventWaitNode(NODE, CUevent event)
{
	struct sim_work work;
	return sim_graph_nodes_add(node, graph, dependencies, count,
				   event_from(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &work), &work);
}

/* Replaces the node's work: in the graph here, in an executable graph below. */
CUresult sim_graph_nodes_change(CUgraphNode node, CUresult result, const struct sim_work *work)
{
	if (result == CUDA_SUCCESS)
		result = sim_graph_lock_node(node, work->type);
	if (result != CUDA_SUCCESS)
		return result;
	node->work = *work;
	return sim_object_unlock(CUDA_SUCCESS);
}

CUresult sim_graph_nodes_change_step(CUgraphExec exec, CUgraphNode node, CUresult result, const struct sim_work *work)
{
	if (result == CUDA_SUCCESS)
		result = sim_object_lock(exec, SIM_EXEC);
	if (result != CUDA_SUCCESS)
		return result;
	result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < exec->plan.count; i++) {
		struct sim_step *step = &exec->plan.steps[i];
		if (step->node != node || step->work.type != work->type)
			continue;
		step->work = *work;
		result = CUDA_SUCCESS;
	}
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_change(node, sim_graph_nodes_launch_from(p, false, &work), &work);
}

SIM_EXPORT CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_change(node, sim_graph_nodes_launch_from(p, true, &work), &work);
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_change_step(exec, node, sim_graph_nodes_launch_from(p, false, &work), &work);
}

SIM_EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
						      const CUDA_KERNEL_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_change_step(exec, node, sim_graph_nodes_launch_from(p, true, &work), &work);
}

SIM_EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p,
						   CUcontext context)
{
	struct sim_work work;
	(void)context;
	return sim_graph_nodes_change_step(exec, node, copy_from(p, &work), &work);
}

SIM_EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p,
						   CUcontext context)
{
	struct sim_work work;
	(void)context;
	return sim_graph_nodes_change_step(exec, node, sim_graph_nodes_fill_from(p, &work), &work);
}

SIM_EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p)
{
	struct sim_work work;
	return sim_graph_nodes_change_step(exec, node, host_from(p, &work), &work);
}

/* Argument values are not kept, because nothing computes with them. */
static CUresult get_launch(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out, size_t size)
{
	TRY(out ? sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_KERNEL) : CUDA_ERROR_INVALID_VALUE);
	const struct sim_launch *launch = &node->work.launch;
	CUDA_KERNEL_NODE_PARAMS full = {
		.func = launch->function,
		.gridDimX = launch->grid[0],
		.gridDimY = launch->grid[1],
		.gridDimZ = launch->grid[2],
		.blockDimX = launch->block[0],
		.blockDimY = launch->block[1],
		.blockDimZ = launch->block[2],
		.sharedMemBytes = launch->shared,
	};
	memcpy(out, &full, size);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
	return get_launch(node, out, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
}

SIM_EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
	return get_launch(node, out, sizeof *out);
}

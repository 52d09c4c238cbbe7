/* Graphs made launchable: steps in an order that honours the edges. A launch runs them one after the other. */
#include <stdlib.h>
#include <string.h>

#include "cuda_graph.h"
#include "cuda_graph_memory.h"
#include "sim_clock.h"

static CUresult unlock(CUresult result)
{
	pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

static size_t count_steps(const struct sim_graph *graph)
{
	size_t count = 0;

	for (size_t i = 0; i < graph->count; i++)
		count += graph->nodes[i]->child ? count_steps(graph->nodes[i]->child) : 1;
	return count;
}

static void visit(struct sim_step *steps, size_t *count, struct sim_node *node);

static void visit_all(struct sim_step *steps, size_t *count, const struct sim_graph *graph)
{
	for (size_t i = 0; i < graph->count; i++)
		graph->nodes[i]->visited = false;
	for (size_t i = 0; i < graph->count; i++)
		visit(steps, count, graph->nodes[i]);
}

/* Depth first: what a node depends on comes before it. There are no cycles. */
static void visit(struct sim_step *steps, size_t *count, struct sim_node *node)
{
	if (node->visited)
		return;
	node->visited = true;
	for (size_t i = 0; i < node->dependency_count; i++)
		visit(steps, count, node->dependencies[i]);
	if (node->child)
		visit_all(steps, count, node->child);
	else
		steps[(*count)++] = (struct sim_step){.node = node, .work = node->work};
}

static struct sim_step *steps_of(const struct sim_graph *graph, size_t *count)
{
	struct sim_step *steps = calloc(count_steps(graph) + 1, sizeof *steps);

	*count = 0;
	if (steps)
		visit_all(steps, count, graph);
	return steps;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	if (flags & ~(unsigned long long)CU_GRAPH_INSTANTIATE_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_graph(graph, NULL, 0, out);
	if (result != CUDA_SUCCESS)
		return result;
	size_t count;
	struct sim_step *steps = steps_of(graph, &count);
	struct sim_exec *exec = steps ? sim_object_create(sizeof *exec, SIM_EXEC, NULL) : NULL;
	if (!exec) {
		free(steps);
		return unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	exec->flags = flags;
	exec->steps = exec->object.owned = steps;
	exec->count = count;
	*out = exec;
	return unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	if (node)
		*node = NULL;
	if (log && size)
		*log = 0;
	return instantiate(exec, graph, 0);
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return instantiate(exec, graph, flags);
}

SIM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	CUresult result = p ? instantiate(exec, graph, p->flags) : CUDA_ERROR_INVALID_VALUE;

	if (p) {
		p->hErrNode_out = NULL;
		p->result_out = result != CUDA_SUCCESS;
	}
	return result;
}

SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = sim_lock_object(exec, SIM_EXEC);

	if (result != CUDA_SUCCESS)
		return result;
	sim_object_destroy(exec);
	return unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphExecGetFlags(CUgraphExec exec, unsigned long long *flags)
{
	CUresult result = flags ? sim_lock_object(exec, SIM_EXEC) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	*flags = exec->flags;
	return unlock(CUDA_SUCCESS);
}

enum { UPDATE_SUCCESS, UPDATE_ERROR, UPDATE_ERROR_TOPOLOGY_CHANGED, UPDATE_ERROR_NODE_TYPE_CHANGED };

/* The graph must have the same steps in the same order; only parameters may differ. */
static int update(struct sim_exec *exec, const struct sim_graph *graph, CUgraphNode *culprit)
{
	size_t count;
	struct sim_step *steps = steps_of(graph, &count);
	int result = !steps ? UPDATE_ERROR : count != exec->count ? UPDATE_ERROR_TOPOLOGY_CHANGED : UPDATE_SUCCESS;

	for (size_t i = 0; result == UPDATE_SUCCESS && i < count; i++) {
		if (steps[i].work.type == exec->steps[i].work.type)
			continue;
		result = UPDATE_ERROR_NODE_TYPE_CHANGED;
		*culprit = steps[i].node;
	}
	if (result != UPDATE_SUCCESS) {
		free(steps);
		return result;
	}
	for (size_t i = 0; i < count; i++)
		steps[i].node = exec->steps[i].node;
	free(exec->steps);
	exec->steps = exec->object.owned = steps;
	return result;
}

static CUresult update_from(CUgraphExec exec, CUgraph graph, int *how, CUgraphNode *culprit)
{
	CUresult result = sim_lock_graph(graph, NULL, 0, how);

	if (result != CUDA_SUCCESS)
		return result;
	*culprit = NULL;
	if (!sim_object_is(exec, SIM_EXEC))
		return unlock(CUDA_ERROR_INVALID_VALUE);
	*how = update(exec, graph, culprit);
	return unlock(*how == UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

SIM_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit, int *how)
{
	CUgraphNode node = NULL;
	CUresult result = update_from(exec, graph, how, &node);

	if (culprit)
		*culprit = node;
	return result;
}

SIM_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	if (!info)
		return CUDA_ERROR_INVALID_VALUE;
	*info = (CUgraphExecUpdateResultInfo){0};
	return update_from(exec, graph, &info->result, &info->errorNode);
}

static struct sim_step *find_step(CUgraphExec exec, CUgraphNode node)
{
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].node == node)
			return &exec->steps[i];
	return NULL;
}

SIM_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
	CUresult result = sim_lock_object(exec, SIM_EXEC);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_step *step = find_step(exec, node);
	if (step)
		step->disabled = !enabled;
	return unlock(step ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled)
{
	CUresult result = enabled ? sim_lock_object(exec, SIM_EXEC) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	const struct sim_step *step = find_step(exec, node);
	if (step)
		*enabled = !step->disabled;
	return unlock(step ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* The steps as they are now: who changes the graph later does not change what was launched. */
static CUresult snapshot(CUgraphExec exec, struct sim_step **steps, size_t *count, unsigned long long *flags)
{
	CUresult result = sim_lock_object(exec, SIM_EXEC);

	if (result != CUDA_SUCCESS)
		return result;
	*count = exec->count;
	*flags = exec->flags;
	*steps = calloc(exec->count + 1, sizeof **steps);
	if (*steps)
		memcpy(*steps, exec->steps, exec->count * sizeof **steps);
	return unlock(*steps ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct sim_context *context;
	struct sim_step *steps;
	unsigned long long flags;
	size_t count;
	CUresult result = sim_stream_context(stream, &context);

	if (result == CUDA_SUCCESS)
		result = snapshot(exec, &steps, &count, &flags);
	if (result != CUDA_SUCCESS)
		return result;
	sim_pay(SIM_COST_GRAPH);
	result = sim_graph_memory_prepare(context, steps, count, flags, stream);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		if (!steps[i].disabled)
			result = sim_submit(stream, &steps[i].work, false);
	}
	free(steps);
	return result;
}

SIM_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	struct sim_context *context;
	struct sim_step *steps;
	unsigned long long flags;
	size_t count;
	CUresult result = sim_stream_context(stream, &context);

	if (result == CUDA_SUCCESS)
		result = snapshot(exec, &steps, &count, &flags);
	if (result != CUDA_SUCCESS)
		return result;
	result = sim_graph_memory_reserve(context, steps, count);
	free(steps);
	return result;
}

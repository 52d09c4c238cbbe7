/*
 * Executable graphs: instantiation, updates, and launches. A step is submitted to the stream of its lane, which waits
 * for the steps of other lanes. The order of the steps and their lanes come from cuda/graph/graph_plan.c; the memory of
 * allocation nodes from cuda/memory/graph_memory.c.
 */
#include <stdlib.h>

#include "cuda/gexec/graph_exec.h"
#include "cuda/work/launch.h"
#include "cuda/gexec/memop.h"
#include "cuda/memory/graph_memory.h"
#include "cuda/work/stream.h"
#include "state/clock.h"

static void destroy(struct sim_exec *exec)
{
	sim_graph_plan_free(&exec->plan);
	sim_object_destroy(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	struct sim_context *context;

	REJECT(flags & ~(unsigned long long)CU_GRAPH_INSTANTIATE_FLAGS);
	CUdevice device = sim_context_current(&context) == CUDA_SUCCESS ? context->device : 0;
	TRY(sim_graph_lock(graph, NULL, 0, out));
	struct sim_exec *exec = sim_object_create(sizeof *exec, SIM_EXEC, NULL);
	if (!exec)
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	if (!sim_graph_plan_make(&exec->plan, graph)) {
		sim_object_destroy(exec);
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	}
	exec->flags = flags;
	exec->device = device;
	exec->nodes = exec->plan.count;
	CUresult result = sim_graph_memory_keep_nodes(device, exec->nodes);
	if (result == CUDA_SUCCESS)
		*out = exec;
	else
		destroy(exec);
	return sim_object_unlock(result);
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
	TRY(sim_object_lock(exec, SIM_EXEC));
	sim_graph_memory_leave_nodes(exec->device, exec->nodes);
	destroy(exec);
	return sim_object_unlock(CUDA_SUCCESS);
}

enum {
	UPDATE_SUCCESS,
	UPDATE_ERROR,
	UPDATE_ERROR_TOPOLOGY_CHANGED,
	UPDATE_ERROR_NODE_TYPE_CHANGED,
	UPDATE_ERROR_FUNCTION_CHANGED,
};

/* A kernel may be replaced by another one of the same device only. */
static bool other_device(const struct sim_work *a, const struct sim_work *b)
{
	if (a->type != CU_GRAPH_NODE_TYPE_KERNEL || !sim_object_is(a->launch.function, SIM_FUNCTION) ||
	    !sim_object_is(b->launch.function, SIM_FUNCTION))
		return false;
	return a->launch.function->object.context->device != b->launch.function->object.context->device;
}

/* Compares two plans: they must have the same steps in the same order; only parameters may differ. */
static int compare_plans(const struct sim_plan *old, const struct sim_plan *new, CUgraphNode *culprit)
{
	size_t same = sim_graph_plan_compare(old, new);

	if (same < new->count)
		*culprit = new->steps[same].node;
	if (old->count != new->count)
		return UPDATE_ERROR_TOPOLOGY_CHANGED;
	if (same < new->count)
		return old->steps[same].work.type == new->steps[same].work.type ? UPDATE_ERROR_TOPOLOGY_CHANGED
										: UPDATE_ERROR_NODE_TYPE_CHANGED;
	for (size_t i = 0; i < new->count; i++) {
		*culprit = new->steps[i].node;
		if (other_device(&old->steps[i].work, &new->steps[i].work))
			return UPDATE_ERROR_FUNCTION_CHANGED;
	}
	*culprit = NULL;
	return UPDATE_SUCCESS;
}

static int update(struct sim_exec *exec, const struct sim_graph *graph, CUgraphNode *culprit)
{
	struct sim_plan plan;

	if (!sim_graph_plan_make(&plan, graph))
		return UPDATE_ERROR;
	int result = compare_plans(&exec->plan, &plan, culprit);
	for (size_t i = 0; result == UPDATE_SUCCESS && i < plan.count; i++) {
		plan.steps[i].node = exec->plan.steps[i].node;
		plan.steps[i].disabled = exec->plan.steps[i].disabled;
	}
	struct sim_plan old = result == UPDATE_SUCCESS ? exec->plan : plan;
	if (result == UPDATE_SUCCESS)
		exec->plan = plan;
	sim_graph_plan_free(&old);
	return result;
}

static CUresult update_from(CUgraphExec exec, CUgraph graph, int *how, CUgraphNode *culprit)
{
	TRY(sim_graph_lock(graph, NULL, 0, how));
	*culprit = NULL;
	if (!sim_object_is(exec, SIM_EXEC))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	*how = update(exec, graph, culprit);
	return sim_object_unlock(*how == UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
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
	REJECT(!info);
	*info = (CUgraphExecUpdateResultInfo){0};
	return update_from(exec, graph, &info->result, &info->errorNode);
}

static struct sim_step *find_step(CUgraphExec exec, CUgraphNode node)
{
	for (size_t i = 0; node && i < exec->plan.count; i++)
		if (exec->plan.steps[i].node == node)
			return &exec->plan.steps[i];
	return NULL;
}

SIM_EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
	TRY(sim_object_lock(exec, SIM_EXEC));
	struct sim_step *step = find_step(exec, node);
	if (step)
		step->disabled = !enabled;
	return sim_object_unlock(step ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Replaces the node's child graph; the new one must have the same steps. */
static CUresult change_child(CUgraphExec exec, CUgraphNode node, const struct sim_graph *child)
{
	const struct sim_step *end = find_step(exec, node);
	size_t at = end ? (size_t)(end - exec->plan.steps) : 0;
	struct sim_plan plan;

	if (!end || !sim_graph_plan_make(&plan, child))
		return end ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
	CUresult result = plan.count < at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	struct sim_step *steps = &exec->plan.steps[at - (result == CUDA_SUCCESS ? plan.count : 0)];
	for (size_t i = 0; result == CUDA_SUCCESS && i < plan.count; i++)
		if (steps[i].work.type != plan.steps[i].work.type)
			result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; result == CUDA_SUCCESS && i < plan.count; i++)
		steps[i].work = plan.steps[i].work;
	sim_graph_plan_free(&plan);
	return result;
}

SIM_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	TRY(sim_object_lock(exec, SIM_EXEC));
	return sim_object_unlock(sim_object_is(child, SIM_GRAPH) ? change_child(exec, node, child)
								 : CUDA_ERROR_INVALID_VALUE);
}

/* Copies the present steps: later changes to the graph do not change what was launched. */
static CUresult snapshot(CUgraphExec exec, struct sim_plan *plan, unsigned long long *flags)
{
	TRY(sim_object_lock(exec, SIM_EXEC));
	*flags = exec->flags;
	return sim_object_unlock(sim_graph_plan_copy(plan, &exec->plan) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* One launch: a stream per lane (the first is the caller's), and an event for each step that another lane waits for. */
struct launch {
	struct sim_context *context;
	const struct sim_plan *plan;
	bool is_parallel;
	CUstream lanes[SIM_LANES];
	CUevent begin, *ends;
};

static CUresult record(struct launch *launch, CUevent *event, unsigned lane)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};

	work.event = *event = sim_event_new(launch->context);
	return work.event ? sim_queue_submit(launch->lanes[lane], &work, false) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult wait(struct launch *launch, CUevent event, unsigned lane)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};

	return sim_queue_submit(launch->lanes[lane], &work, false);
}

static CUresult open_lanes(struct launch *launch)
{
	unsigned lanes = launch->plan->lanes;

	launch->ends = calloc(launch->plan->count + 1, sizeof(CUevent));
	CUresult result = launch->ends ? record(launch, &launch->begin, 0) : CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned lane = 1; result == CUDA_SUCCESS && lane < lanes; lane++) {
		launch->lanes[lane] = sim_stream_new(launch->context, launch->lanes[0]);
		result = launch->lanes[lane] ? wait(launch, launch->begin, lane) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

/* The work that was submitted is carried out nevertheless: streams and moments outlive their handles. */
static void close_lanes(struct launch *launch)
{
	for (unsigned lane = 1; lane < SIM_LANES && launch->lanes[lane]; lane++)
		cuStreamDestroy_v2(launch->lanes[lane]);
	if (launch->begin)
		sim_event_destroy(launch->begin);
	for (size_t i = 0; launch->ends && i < launch->plan->count; i++)
		if (launch->ends[i])
			sim_event_destroy(launch->ends[i]);
	free(launch->ends);
}

static CUresult submit_work(const struct launch *launch, const struct sim_step *step, CUstream stream)
{
	struct sim_work work = step->work;

	if (step->disabled || (work.type == CU_GRAPH_NODE_TYPE_EMPTY && launch->is_parallel))
		return CUDA_SUCCESS;
	if (work.type == CU_GRAPH_NODE_TYPE_MEMCPY && !work.duration)
		work.duration = sim_copy_duration(&work.copy, launch->context);
	if (work.type == CU_GRAPH_NODE_TYPE_MEMSET && !work.duration)
		work.duration = sim_copy_fill_duration(&work.fill, launch->context);
	sim_launch_restrict(&work, launch->context);
	return work.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ? sim_memop_submit(stream, work.memops)
							    : sim_queue_submit(stream, &work, false);
}

static CUresult submit_step(struct launch *launch, size_t index)
{
	const struct sim_step *step = &launch->plan->steps[index];
	unsigned lane = launch->is_parallel ? step->lane : 0;
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; launch->is_parallel && result == CUDA_SUCCESS && i < step->wait_count; i++)
		result = wait(launch, launch->ends[launch->plan->waits[step->first_wait + i]], lane);
	if (result == CUDA_SUCCESS)
		result = submit_work(launch, step, launch->lanes[lane]);
	if (result == CUDA_SUCCESS && launch->is_parallel && step->is_awaited)
		result = record(launch, &launch->ends[index], lane);
	return result;
}

/* Work that follows the launch in its stream waits for all lanes. */
static CUresult join_lanes(struct launch *launch)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned lane = 1; result == CUDA_SUCCESS && lane < launch->plan->lanes; lane++) {
		size_t tail = launch->plan->tails[lane];
		if (!launch->ends[tail])
			result = record(launch, &launch->ends[tail], lane);
		if (result == CUDA_SUCCESS)
			result = wait(launch, launch->ends[tail], 0);
	}
	return result;
}

static CUresult submit_launch(struct launch *launch)
{
	CUresult result = launch->is_parallel ? open_lanes(launch) : CUDA_SUCCESS;

	for (size_t i = 0; result == CUDA_SUCCESS && i < launch->plan->count; i++)
		result = submit_step(launch, i);
	if (result == CUDA_SUCCESS && launch->is_parallel)
		result = join_lanes(launch);
	close_lanes(launch);
	return result;
}

/* A graph that is launched into a capture becomes part of the captured graph, in one lane. */
SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct launch launch = {.lanes = {stream}};
	unsigned long long flags;
	struct sim_plan plan;
	int capturing;
	CUresult result = sim_stream_context(stream, &launch.context);

	if (result == CUDA_SUCCESS)
		result = cuStreamIsCapturing(stream, &capturing);
	if (result == CUDA_SUCCESS)
		result = snapshot(exec, &plan, &flags);
	if (result != CUDA_SUCCESS)
		return result;
	launch.plan = &plan;
	launch.is_parallel = plan.lanes > 1 && !capturing;
	sim_clock_pay(SIM_COST_GRAPH);
	if (!capturing) /* in a capture, the launch of the captured graph does it */
		result = sim_graph_memory_nodes_prepare(plan.steps, plan.count, flags, stream);
	if (result == CUDA_SUCCESS)
		result = submit_launch(&launch);
	sim_graph_plan_free(&plan);
	return result;
}

SIM_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	struct sim_context *context;
	unsigned long long flags;
	struct sim_plan plan;

	TRY(sim_stream_context(stream, &context));
	TRY(snapshot(exec, &plan, &flags));
	CUresult result = sim_graph_memory_nodes_reserve(plan.steps, plan.count);
	sim_graph_plan_free(&plan);
	return result;
}

/*
 * The wrappers of libcuda.so.1 for graphs with allocation nodes (the list: cuda_hooks.h). The driver takes a graph's
 * memory when it is instantiated, uploaded or launched, from a pool of the device's own: that pool's reserve is charged
 * (pools.h). A graph without such nodes costs a launch one load.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "charge.h"
#include "cores.h"
#include "cuda_hooks.h"
#include "limits_file.h"
#include "pools.h"
#include "usage.h"

enum { DEPTH = 8 }; /* of graphs in graphs that are looked into */

struct demand {
	CUdevice device; /* of the first allocation node */
	uint64_t size;
};

static atomic_uint execs; /* graphs with allocation nodes that can be launched */

static void add_node(CUgraphNode node, struct demand *demand, int depth);

static void add_graph(CUgraph graph, struct demand *demand, int depth)
{
	size_t count = 0;

	if (!depth || REAL(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || !count)
		return;
	CUgraphNode *nodes = calloc(count, sizeof(*nodes));
	if (nodes && REAL(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			add_node(nodes[i], demand, depth);
	free(nodes);
}

static void add_node(CUgraphNode node, struct demand *demand, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params[2]; /* the second: room should a newer driver's structure be longer */
	CUgraphNodeType type;
	CUgraph child;

	if (REAL(cuGraphNodeGetType, node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
		add_graph(child, demand, depth - 1);
	if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams, node, params) != CUDA_SUCCESS ||
	    params->pool_props.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return;
	demand->size += params->bytesize;
	if (demand->device == NO_DEVICE)
		demand->device = params->pool_props.location.id;
}

struct graph_call {
	struct demand demand;
	struct pool_charge charge;
	bool entered;
};

static CUresult begin(struct graph_call *call, bool reusing)
{
	struct pool *pool = pools_of_graphs(call->demand.device);

	if (!pool || !call->demand.size || pools_begin(&call->charge, pool, call->demand.size, reusing))
		return CUDA_SUCCESS;
	guard_leave();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void end(struct graph_call *call)
{
	if (call->charge.pool)
		(void)pools_end(&call->charge, NULL);
	if (call->entered)
		guard_leave();
}

/* ---- instantiate ---- */

static CUresult begin_instantiate(struct graph_call *call, CUgraph graph)
{
	*call = (struct graph_call){.demand.device = NO_DEVICE};
	call->entered = limits_state() == LIMITS_PRESENT && guard_enter();
	if (!call->entered)
		return CUDA_SUCCESS;
	add_graph(graph, &call->demand, DEPTH);
	return begin(call, false);
}

static void keep(CUgraphExec exec, const struct demand *demand)
{
	struct allocation *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return;
	*entry = (struct allocation){
		.kind = GRAPH_EXEC, .key = (uintptr_t)exec, .size = demand->size, .device = demand->device,
		.card = USAGE_NO_CARD,
	};
	free(allocations_put(entry));
	atomic_fetch_add(&execs, 1);
}

static CUresult end_instantiate(struct graph_call *call, CUresult result, const CUgraphExec *exec)
{
	if (result == CUDA_SUCCESS && call->demand.size)
		keep(*exec, &call->demand);
	end(call);
	return result;
}

#define INSTANTIATE(function, exec, graph, ...)                                                       \
	struct graph_call call;                                                                       \
	CUresult result = begin_instantiate(&call, graph);                                            \
	return result == CUDA_SUCCESS ? end_instantiate(&call, REAL(function, exec, graph, __VA_ARGS__), exec) : result

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate, exec, graph, error_node, log, size);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate_v2, exec, graph, error_node, log, size);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	INSTANTIATE(cuGraphInstantiateWithFlags, exec, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams, exec, graph, params);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams_ptsz, exec, graph, params);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct allocation *entry =
		atomic_load(&execs) && limits_state() == LIMITS_PRESENT ? allocations_take(GRAPH_EXEC, (uintptr_t)exec) : NULL;
	CUresult result = GUARDED(REAL(cuGraphExecDestroy, exec));

	if (entry) {
		atomic_fetch_sub(&execs, 1);
		free(entry);
		pools_settle();
	}
	return result;
}

/* ---- launch ---- */

/* False: a graph without memory of its own. */
static bool has_memory(CUgraphExec exec, struct graph_call *call)
{
	struct allocation entry;

	if (!atomic_load_explicit(&execs, memory_order_relaxed) || !allocations_find(GRAPH_EXEC, (uintptr_t)exec, &entry))
		return false;
	*call = (struct graph_call){.demand = {entry.device, entry.size}, .entered = guard_enter()};
	return call->entered;
}

static bool launched_before(CUgraphExec exec)
{
	struct allocation entry;

	return allocations_find(GRAPH_EXEC, (uintptr_t)exec, &entry) && entry.references;
}

static CUresult end_launch(struct graph_call *call, CUgraphExec exec, CUresult result)
{
	if (result == CUDA_SUCCESS && !launched_before(exec))
		(void)allocations_reference(GRAPH_EXEC, (uintptr_t)exec);
	end(call);
	pools_freed();
	return result;
}

#define LAUNCH(function, exec, stream)                                                                \
	struct graph_call call;                                                                       \
	if (!has_memory(exec, &call))                                                                 \
		return GUARDED(REAL(function, exec, stream));                                         \
	CUresult result = begin(&call, launched_before(exec));                                        \
	return result == CUDA_SUCCESS ? end_launch(&call, exec, REAL(function, exec, stream)) : result

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphUpload, exec, stream);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphUpload_ptsz, exec, stream);
}

static CUresult launch(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphLaunch, exec, stream);
}

static CUresult launch_ptsz(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphLaunch_ptsz, exec, stream);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct core_launch call;

	cores_begin(&call, exec, 0, stream, STREAM_LEGACY);
	cores_pause(&call);
	CUresult result = launch(exec, stream);
	cores_resume(&call);
	return cores_end(&call, result);
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	struct core_launch call;

	cores_begin(&call, exec, 0, stream, STREAM_PER_THREAD);
	cores_pause(&call);
	CUresult result = launch_ptsz(exec, stream);
	cores_resume(&call);
	return cores_end(&call, result);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = GUARDED(REAL(cuDeviceGraphMemTrim, device));

	if (guard_enter()) {
		pools_settle();
		guard_leave();
	}
	return result;
}

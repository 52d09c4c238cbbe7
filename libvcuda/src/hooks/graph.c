/*
 * The wrappers of libcuda.so.1 for graphs. driver/cuda_table.h lists all wrappers.
 *
 * Belongs here: which allocation and free nodes a graph has, how long its kernels should take, and the calls that
 * instantiate, upload, launch and destroy it. When a graph with allocation nodes is instantiated, uploaded or launched,
 * the driver takes its memory from a pool of the device's own. That pool's reserve is charged (memory/pools.h). If no
 * graph has such nodes, a launch costs one load more.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compute/estimates.h"
#include "compute/launch.h"
#include "driver/cuda_table.h"
#include "memory/charge.h"
#include "memory/context_overhead.h"
#include "memory/pools.h"
#include "shared/device_limits.h"
#include "shared/guard.h"
#include "shared/limits.h"
#include "shared/usage.h"

enum {
	DEPTH = 8,                    /* levels of nested graphs that are searched for nodes */
	FLAG_AUTO_FREE_ON_LAUNCH = 1, /* a flag of cuGraphInstantiateWithFlags */
};

struct node {
	CUdeviceptr pointer;
	uint64_t size;   /* 0: the node frees */
	unsigned int at; /* of the device, in the demand */
};

/* What the allocation nodes of a graph take from one device's pool. */
struct device_demand {
	CUdevice device;
	uint64_t size;
	uint64_t left; /* bytes of `size` that the graph does not free itself */
};

struct demand {
	struct device_demand on[VGPU_LIMITS_MAX_CARDS];
	unsigned int count;
	bool frees_others; /* the graph frees memory that it does not allocate */
};

struct nodes {
	struct node *list;
	size_t count, room;
	uint64_t length; /* ns that the kernels should take, one after the other */
	bool has_unknown_kernels;
};

static atomic_uint execs; /* executable graphs that allocate or free memory */

static void add_node(CUgraphNode node, struct demand *demand, struct nodes *found, int depth);

static void add_graph(CUgraph graph, struct demand *demand, struct nodes *found, int depth)
{
	size_t count = 0;

	if (!depth || REAL(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || !count)
		return;
	CUgraphNode *nodes = calloc(count, sizeof(*nodes));
	if (nodes && REAL(cuGraphGetNodes, graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			add_node(nodes[i], demand, found, depth);
	free(nodes);
}

static void note(struct nodes *found, CUdeviceptr pointer, uint64_t size, unsigned int at)
{
	if (found->count == found->room) {
		size_t room = found->room ? found->room * 2 : 16;
		struct node *list = realloc(found->list, room * sizeof(*list));
		if (!list)
			return;
		found->list = list;
		found->room = room;
	}
	found->list[found->count++] = (struct node){pointer, size, at};
}

/* The driver may give fewer words than the structure has. */
static void add_kernel(CUgraphNode node, struct nodes *found)
{
	CUDA_KERNEL_NODE_PARAMS params[2] = {{.func = NULL}};
	const CUDA_KERNEL_NODE_PARAMS *is = params;

	if (REAL(cuGraphKernelNodeGetParams_v2, node, params) != CUDA_SUCCESS) {
		found->has_unknown_kernels = true;
		return;
	}
	const struct estimate *kind = estimates_find((uint64_t)(uintptr_t)(is->func ? is->func : is->kern),
						     compute_launch_blocks(is->gridDimX, is->gridDimY, is->gridDimZ));
	found->length += estimates_ns(kind);
	found->has_unknown_kernels |= !estimates_known(kind);
}

/* Only devices with a limit count. The limits file has no more of them than a demand has places. */
static void add_allocation(const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct demand *demand, struct nodes *found)
{
	const CUdevice device = params->pool_props.location.id;
	unsigned int at = 0;

	if (params->pool_props.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !pools_of_graphs(device))
		return;
	while (at < demand->count && demand->on[at].device != device)
		at++;
	if (at == VGPU_LIMITS_MAX_CARDS)
		return;
	if (at == demand->count)
		demand->on[demand->count++] = (struct device_demand){.device = device};
	demand->on[at].size += params->bytesize;
	note(found, params->dptr, params->bytesize, at);
}

static void add_node(CUgraphNode node, struct demand *demand, struct nodes *found, int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params[2]; /* the second is room for a longer structure of a newer driver */
	CUgraphNodeType type;
	CUdeviceptr pointer;
	CUgraph child;

	if (REAL(cuGraphNodeGetType, node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_KERNEL && compute_launch_is_limited())
		add_kernel(node, found);
	if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
		add_graph(child, demand, found, depth - 1);
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && REAL(cuGraphMemAllocNodeGetParams, node, params) == CUDA_SUCCESS)
		add_allocation(params, demand, found);
	if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && REAL(cuGraphMemFreeNodeGetParams, node, &pointer) == CUDA_SUCCESS)
		note(found, pointer, 0, 0);
}

/* Orders nodes by pointer, and an allocation before a free. */
static int compare(const void *left, const void *right)
{
	const struct node *a = left, *b = right;

	if (a->pointer != b->pointer)
		return a->pointer < b->pointer ? -1 : 1;
	return (a->size < b->size) - (a->size > b->size);
}

/* Returns for how long the graph's kernels should work. 0: that is not known. */
static uint64_t look_into(CUgraph graph, struct demand *demand)
{
	struct nodes found = {.list = NULL};

	add_graph(graph, demand, &found, DEPTH);
	if (found.count)
		qsort(found.list, found.count, sizeof(*found.list), compare);
	for (size_t i = 0; i < found.count; i++) {
		const struct node *node = &found.list[i];
		bool freed = i + 1 < found.count && node[1].pointer == node->pointer && !node[1].size;
		if (node->size && !freed)
			demand->on[node->at].left += node->size;
		else if (!node->size && (!i || node[-1].pointer != node->pointer))
			demand->frees_others = true;
	}
	free(found.list);
	return found.has_unknown_kernels ? 0 : found.length;
}

struct graph_call {
	struct demand demand;
	struct pool_charge charges[VGPU_LIMITS_MAX_CARDS];
	unsigned int charged;
	uint64_t length; /* as look_into() returns it */
	bool entered;
};

static const struct graph_launch_mark nothing_runs = {NULL, NULL};

/* Ends the charges. `stream`: the graph was launched into it, and may take its memory until the stream has run it. */
static void end_charges(struct graph_call *call, const CUstream *stream)
{
	while (call->charged)
		pools_end_graph(&call->charges[--call->charged], stream ? graph_launches_mark(*stream) : nothing_runs);
}

static bool tries(const struct graph_call *call)
{
	bool found = false;

	for (unsigned int i = 0; i < call->charged; i++)
		found |= call->charges[i].tries;
	return found;
}

/*
 * If there is no room, waits for the work of `stream` and for launched graphs: both may free memory. It tries again even
 * if nothing was left to wait for, because their work may have ended since the first try.
 */
static bool begin_charge(struct graph_call *call, const struct device_demand *demand, CUgraphExec exec, CUstream stream)
{
	const struct graph_memory graph = {exec, demand->size, demand->left, tries(call)};
	struct pool_charge *charge = &call->charges[call->charged];
	struct pool *pool = demand->size ? pools_of_graphs(demand->device) : NULL;

	if (!pool)
		return true;
	bool granted = pools_begin_graph(charge, pool, &graph);
	if (!granted) {
		if (exec)
			graph_launches_await(stream);
		pools_wait_for_graphs(pools_card_of(pool));
		granted = pools_begin_graph(charge, pool, &graph) ||
			  (context_overhead_fell(demand->device) && pools_begin_graph(charge, pool, &graph));
	}
	if (!granted)
		usage_refused(pools_card_of(pool));
	call->charged += granted;
	return granted;
}

static void leave(const struct graph_call *call)
{
	if (call->entered)
		guard_leave();
}

/* Begins the charges of all devices or of none. */
static CUresult begin_graph(struct graph_call *call, CUgraphExec exec, CUstream stream)
{
	for (unsigned int i = 0; i < call->demand.count; i++) {
		if (begin_charge(call, &call->demand.on[i], exec, stream))
			continue;
		end_charges(call, NULL);
		leave(call);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* ---- instantiate ---- */

static CUresult begin_instantiate(struct graph_call *call, CUgraph graph)
{
	call->demand.count = call->charged = 0;
	call->demand.frees_others = false;
	call->entered = limits_state() == LIMITS_PRESENT && guard_enter();
	if (!call->entered)
		return CUDA_SUCCESS;
	call->length = look_into(graph, &call->demand);
	return begin_graph(call, NULL, NULL);
}

static void forget(struct allocation *entry)
{
	if (entry)
		free((void *)(uintptr_t)entry->target);
	free(entry);
}

/*
 * Records the executable graph. What a launch leaves allocated is recorded only for a graph that frees it at the next
 * launch (FLAG_AUTO_FREE_ON_LAUNCH): no other graph finds that memory again.
 */
static void keep(CUgraphExec exec, const struct demand *demand, bool frees_itself)
{
	struct allocation *entry = calloc(1, sizeof(*entry));
	struct demand *kept = malloc(sizeof(*kept));

	if (!entry || !kept) {
		free(entry);
		free(kept);
		return;
	}
	memcpy(kept, demand, sizeof(*kept));
	for (unsigned int i = 0; i < kept->count && !frees_itself; i++)
		kept->on[i].left = 0;
	*entry = (struct allocation){
		.kind = GRAPH_EXEC,
		.key = (uintptr_t)exec,
		.target = (uintptr_t)kept,
		.card = USAGE_NO_CARD,
	};
	pools_graph_gone(exec); /* an earlier graph at this address, which was destroyed with its context */
	forget(allocations_put(entry));
	atomic_fetch_add(&execs, 1);
}

static CUresult end_instantiate(struct graph_call *call, CUresult result, const CUgraphExec *exec, uint64_t flags)
{
	CUdevice device;

	if (result == CUDA_SUCCESS && (call->demand.count || call->demand.frees_others))
		keep(*exec, &call->demand, flags & FLAG_AUTO_FREE_ON_LAUNCH);
	end_charges(call, NULL);
	if (result == CUDA_SUCCESS && call->entered)
		estimates_begin((uint64_t)(uintptr_t)*exec, 0, call->length);
	if (result == CUDA_SUCCESS && call->entered && device_limits_current_device(&device))
		context_overhead_changed(device); /* the executable graph itself takes memory */
	leave(call);
	return result;
}

#define INSTANTIATE(function, flags, exec, graph, ...) \
	struct graph_call call; \
	CUresult result = begin_instantiate(&call, graph); \
	return result == CUDA_SUCCESS ? end_instantiate(&call, REAL(function, exec, graph, __VA_ARGS__), exec, flags) \
				      : result

/* The flags are the first member of the structure. */
static uint64_t flags_in(const void *params)
{
	return params ? *(const unsigned long long *)params : 0;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate, 0, exec, graph, error_node, log, size);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	INSTANTIATE(cuGraphInstantiate_v2, 0, exec, graph, error_node, log, size);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	INSTANTIATE(cuGraphInstantiateWithFlags, flags, exec, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams, flags_in(params), exec, graph, params);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params)
{
	INSTANTIATE(cuGraphInstantiateWithParams_ptsz, flags_in(params), exec, graph, params);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	struct allocation *entry = atomic_load(&execs) && limits_state() == LIMITS_PRESENT
					   ? allocations_take(GRAPH_EXEC, (uintptr_t)exec)
					   : NULL;
	CUresult result = GUARDED(REAL(cuGraphExecDestroy, exec));

	if (entry) {
		atomic_fetch_sub(&execs, 1);
		forget(entry);
		pools_graph_gone(exec);
		pools_reconcile();
	}
	return result;
}

/* ---- launch ---- */

static bool is_captured(CUstream stream)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	return REAL(cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * False: the graph neither allocates nor frees, it is launched into a capture, or the driver itself makes the call.
 * `within`: the wrapper holds the guard already. A program must not destroy a graph while it launches it.
 */
static bool has_memory(CUgraphExec exec, CUstream stream, struct graph_call *call, bool within)
{
	struct allocation entry;

	if (!atomic_load_explicit(&execs, memory_order_relaxed) ||
	    !allocations_find(GRAPH_EXEC, (uintptr_t)exec, &entry) || is_captured(stream))
		return false;
	memcpy(&call->demand, (const void *)(uintptr_t)entry.target, sizeof(call->demand));
	call->charged = 0;
	call->entered = !within && guard_enter();
	return within || call->entered;
}

static CUresult end_launch(struct graph_call *call, CUstream stream, CUresult result)
{
	if (result == CUDA_SUCCESS && call->demand.frees_others)
		graph_launches_freed();
	end_charges(call, result == CUDA_SUCCESS ? &stream : NULL);
	leave(call);
	pools_freed(stream);
	return result;
}

/* `marked` is the handle by which the driver's unsuffixed functions refer to the stream. */
#define LAUNCH(function, exec, stream, marked, within) \
	struct graph_call call; \
	if (!has_memory(exec, marked, &call, within)) \
		return REAL(function, exec, stream); \
	CUresult result = begin_graph(&call, exec, marked); \
	return result == CUDA_SUCCESS ? end_launch(&call, marked, REAL(function, exec, stream)) : result

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphUpload, exec, stream, stream, false);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	LAUNCH(cuGraphUpload_ptsz, exec, stream, OWN(stream), false);
}

static CUresult launch_graph(CUgraphExec exec, CUstream stream, bool within)
{
	LAUNCH(cuGraphLaunch, exec, stream, stream, within);
}

static CUresult launch_graph_ptsz(CUgraphExec exec, CUstream stream, bool within)
{
	LAUNCH(cuGraphLaunch_ptsz, exec, stream, OWN(stream), within);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct compute_launch call;

	compute_launch_begin(&call, exec, 0, stream, STREAM_LEGACY);
	return compute_launch_end(&call, launch_graph(exec, stream, call.entered));
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	struct compute_launch call;

	compute_launch_begin(&call, exec, 0, stream, STREAM_PER_THREAD);
	return compute_launch_end(&call, launch_graph_ptsz(exec, stream, call.entered));
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = GUARDED(REAL(cuDeviceGraphMemTrim, device));

	if (guard_enter()) {
		pools_reconcile();
		guard_leave();
	}
	return result;
}

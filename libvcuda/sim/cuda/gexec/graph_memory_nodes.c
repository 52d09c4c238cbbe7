/*
 * Allocation and free nodes, and what a launch does about them. A node's addresses are fixed when it is made and never
 * reused. The memory is charged to the card at the first launch (or upload) that needs it. A device's graph memory is
 * in cuda/memory/graph_memory.c.
 */
#include "cuda/gexec/graph_exec.h"
#include "cuda/memory/graph_memory.h"
#include "cuda/work/submit.h"

SIM_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
					   size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	REJECT(!p || !p->bytesize || p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE);
	TRY(sim_device(p->poolProps.location.id));
	if (p->bytesize > sim_device_card(p->poolProps.location.id)->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	char *at = sim_allocation_reserve_addresses((p->bytesize + 0xffff) & ~(size_t)0xffff, 1 << 21, 0);
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_work work = {
		.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
		.memory = {(CUdeviceptr)(uintptr_t)at, p->bytesize, p->poolProps.location.id},
	};
	TRY(sim_graph_lock(graph, dependencies, count, node));
	CUresult result = sim_graph_add(graph, dependencies, count, &work, node);
	p->dptr = work.memory.pointer;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	TRY(p ? sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC) : CUDA_ERROR_INVALID_VALUE);
	*p = (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, node->work.memory.device}},
		.bytesize = node->work.memory.bytes,
		.dptr = node->work.memory.pointer,
	};
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
					  size_t count, CUdeviceptr pointer)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory.pointer = pointer};

	TRY(pointer ? sim_graph_lock(graph, dependencies, count, node) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(sim_graph_add(graph, dependencies, count, &work, node));
}

SIM_EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer)
{
	TRY(pointer ? sim_graph_lock_node(node, CU_GRAPH_NODE_TYPE_MEM_FREE) : CUDA_ERROR_INVALID_VALUE);
	*pointer = node->work.memory.pointer;
	return sim_object_unlock(CUDA_SUCCESS);
}

static bool steps_free(const struct sim_step *steps, size_t count, CUdeviceptr pointer)
{
	for (size_t i = 0; i < count; i++)
		if (steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_FREE && steps[i].work.memory.pointer == pointer)
			return true;
	return false;
}

/* What lives of an earlier launch serves again: launches of one graph follow one another. Called with the lock held. */
static uint64_t bytes_on(CUdevice device, const struct sim_step *steps, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		if (steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && steps[i].work.memory.device == device &&
		    !sim_allocation_at(steps[i].work.memory.pointer, 0))
			bytes += sim_graph_memory_round(steps[i].work.memory.bytes, device);
	return bytes;
}

CUresult sim_graph_memory_nodes_reserve(const struct sim_step *steps, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&sim_driver.lock);
	for (CUdevice device = 0; result == CUDA_SUCCESS && device < sim_driver.device_count; device++) {
		uint64_t bytes = bytes_on(device, steps, count);
		if (bytes)
			result = sim_graph_memory_reserve(device, bytes);
	}
	return sim_object_unlock(result);
}

static bool is_live(CUdeviceptr pointer)
{
	pthread_mutex_lock(&sim_driver.lock);
	bool live = sim_allocation_at(pointer, 0) != NULL;
	pthread_mutex_unlock(&sim_driver.lock);
	return live;
}

/* A graph whose allocations outlive it can be launched again only after they were freed, or if it frees them itself. */
static CUresult free_left_over(const struct sim_step *steps, size_t count, unsigned long long flags, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		CUdeviceptr pointer = steps[i].work.memory.pointer;
		if (steps[i].work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || steps_free(steps, count, pointer) ||
		    !is_live(pointer))
			continue;
		struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory.pointer = pointer};
		result = flags & CU_GRAPH_INSTANTIATE_AUTO_FREE_ON_LAUNCH ? sim_queue_submit(stream, &work, true)
									  : CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUresult sim_graph_memory_nodes_prepare(const struct sim_step *steps, size_t count, unsigned long long flags,
					CUstream stream)
{
	TRY(free_left_over(steps, count, flags, stream));
	return sim_graph_memory_nodes_reserve(steps, count);
}

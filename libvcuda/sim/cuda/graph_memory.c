/*
 * The memory of allocation nodes. A node's addresses are fixed when it is made and never reused. The memory is charged
 * to the card at the first launch (or upload) that needs it. It stays with the device's graph memory for further
 * launches until a trim, or until the device's last context ends.
 */
#include <stdlib.h>

#include "cuda/graph_memory.h"

static uint64_t greater_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t round_to_granularity(uint64_t bytes, CUdevice device)
{
	uint64_t granularity = sim_device_card(device)->granularity;

	return (bytes + granularity - 1) / granularity * granularity;
}

CUresult sim_graph_memory_reserve_bytes(CUdevice device, uint64_t bytes)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	uint64_t wanted = graphs->used + bytes;

	if (wanted <= graphs->reserved)
		return CUDA_SUCCESS;
	CUresult result =
		sim_init_result(sim_ledger_reserve(sim_driver.devices[device].card, wanted - graphs->reserved));
	if (result != CUDA_SUCCESS)
		return result;
	graphs->reserved = wanted;
	graphs->reserved_high = greater_of(graphs->reserved_high, wanted);
	return CUDA_SUCCESS;
}

void sim_graph_memory_unuse(CUdevice device, uint64_t bytes)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;

	graphs->used -= bytes < graphs->used ? bytes : graphs->used;
}

void sim_graph_memory_of(CUdevice device)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;

	if (graphs->reserved <= graphs->used)
		return;
	sim_ledger_release(sim_driver.devices[device].card, graphs->reserved - graphs->used);
	graphs->reserved = graphs->used;
}

SIM_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	TRY(sim_device(device));
	pthread_mutex_lock(&sim_driver.lock);
	sim_graph_memory_of(device);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
	TRY(sim_device(device));
	if (!value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	const struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	const uint64_t values[] = {graphs->used, graphs->used_high, graphs->reserved, graphs->reserved_high};
	*(uint64_t *)value = values[attribute];
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                           size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	if (!p || !p->bytesize || p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
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

static uint64_t bytes_on(CUdevice device, const struct sim_step *steps, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		if (steps[i].work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && steps[i].work.memory.device == device)
			bytes += round_to_granularity(steps[i].work.memory.bytes, device);
	return bytes;
}

CUresult sim_graph_memory_reserve(const struct sim_step *steps, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	for (CUdevice device = 0; result == CUDA_SUCCESS && device < sim_driver.device_count; device++) {
		uint64_t bytes = bytes_on(device, steps, count);
		if (!bytes)
			continue;
		pthread_mutex_lock(&sim_driver.lock);
		result = sim_object_unlock(sim_graph_memory_reserve_bytes(device, bytes));
	}
	return result;
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

CUresult sim_graph_memory_prepare(const struct sim_step *steps, size_t count, unsigned long long flags, CUstream stream)
{
	TRY(free_left_over(steps, count, flags, stream));
	return sim_graph_memory_reserve(steps, count);
}

void sim_graph_memory_alloc(const struct sim_work *work)
{
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	CUdevice device = work->memory.device;
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;

	if (!allocation)
		return;
	allocation->base = work->memory.pointer;
	allocation->size = work->memory.bytes;
	allocation->mapped = (work->memory.bytes + 4095) & ~(size_t)4095;
	allocation->memory = SIM_GRAPH_MEMORY;
	allocation->card = sim_driver.devices[device].card;
	allocation->charged = round_to_granularity(work->memory.bytes, device);
	pthread_mutex_lock(&sim_driver.lock);
	allocation->context = work->context;
	/* The launch reserved it, unless a trim came in between. */
	if (work->context->alive && sim_graph_memory_reserve_bytes(device, allocation->charged) == CUDA_SUCCESS &&
	    sim_allocation_insert(allocation)) {
		graphs->used += allocation->charged;
		graphs->used_high = greater_of(graphs->used_high, graphs->used);
	} else {
		free(allocation);
	}
	pthread_mutex_unlock(&sim_driver.lock);
}

void sim_graph_memory_free(const struct sim_work *work)
{
	sim_allocation_free_in_order(work->memory.pointer);
}

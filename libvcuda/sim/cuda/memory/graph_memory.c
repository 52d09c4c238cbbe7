/*
 * The memory of graphs on each device: what their allocation nodes use, and what is kept for further launches until a
 * trim, or until the device's last context ends. The nodes are in cuda/gexec/graph_memory_nodes.c.
 */
#include <stdlib.h>

#include "cuda/memory/block.h"
#include "cuda/memory/graph_memory.h"
#include "cuda/memory/pool.h"

static uint64_t greater_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

uint64_t sim_graph_memory_round(uint64_t bytes, CUdevice device)
{
	return sim_block_round(bytes, sim_driver.devices[device].card);
}

CUresult sim_graph_memory_reserve(CUdevice device, uint64_t bytes)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	uint64_t wanted = sim_pool_chunks(graphs->used + bytes);

	if (wanted <= graphs->reserved)
		return CUDA_SUCCESS;
	TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[device].card, wanted - graphs->reserved)));
	graphs->reserved = wanted;
	graphs->reserved_high = greater_of(graphs->reserved_high, wanted);
	return CUDA_SUCCESS;
}

void sim_graph_memory_trim(CUdevice device)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	uint64_t rest = sim_pool_chunks(graphs->used);

	if (graphs->reserved <= rest)
		return;
	sim_ledger_release(sim_driver.devices[device].card, graphs->reserved - rest);
	graphs->reserved = rest;
}

SIM_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	TRY(sim_device(device));
	pthread_mutex_lock(&sim_driver.lock);
	sim_graph_memory_trim(device);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
	TRY(sim_device(device));
	REJECT(!value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
	pthread_mutex_lock(&sim_driver.lock);
	const struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	const uint64_t values[] = {graphs->used, graphs->used_high, graphs->reserved, graphs->reserved_high};
	*(uint64_t *)value = values[attribute];
	return sim_object_unlock(CUDA_SUCCESS);
}

CUresult sim_graph_memory_keep_nodes(CUdevice device, size_t nodes)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;
	uint64_t bytes = (graphs->nodes + nodes) * sim_state_header()->graph_node_bytes;

	if (bytes > graphs->kept) {
		TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[device].card, bytes - graphs->kept)));
		graphs->kept = bytes;
	}
	graphs->nodes += nodes;
	return CUDA_SUCCESS;
}

void sim_graph_memory_leave_nodes(CUdevice device, size_t nodes)
{
	sim_driver.devices[device].graphs.nodes -= nodes;
}

void sim_graph_memory_end(CUdevice device)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;

	sim_graph_memory_trim(device);
	sim_ledger_release(sim_driver.devices[device].card, graphs->kept);
	graphs->kept = 0;
}

static void unuse(struct sim_allocation *allocation)
{
	struct sim_graph_memory *graphs = &sim_driver.devices[sim_device_ordinal(allocation->card)].graphs;

	graphs->used -= allocation->charged < graphs->used ? allocation->charged : graphs->used;
}

static const struct sim_payer graph_payer = {.give = unuse};

void sim_graph_memory_alloc(struct sim_context *context, CUdevice device, CUdeviceptr pointer, size_t bytes)
{
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	struct sim_graph_memory *graphs = &sim_driver.devices[device].graphs;

	if (!allocation)
		return;
	allocation->base = pointer;
	allocation->size = bytes;
	allocation->mapped = (bytes + 4095) & ~(size_t)4095;
	allocation->memory = SIM_GRAPH_MEMORY;
	allocation->payer = &graph_payer;
	allocation->card = sim_driver.devices[device].card;
	allocation->charged = sim_graph_memory_round(bytes, device);
	pthread_mutex_lock(&sim_driver.lock);
	allocation->context = context;
	/*
	 * The launch reserved it, unless a trim came in between. A launch before this one may have left memory there, which
	 * serves again.
	 */
	if (context->alive && !sim_allocation_at(pointer, 0) &&
	    sim_graph_memory_reserve(device, allocation->charged) == CUDA_SUCCESS &&
	    sim_allocation_insert(allocation)) {
		graphs->used += allocation->charged;
		graphs->used_high = greater_of(graphs->used_high, graphs->used);
	} else {
		free(allocation);
	}
	pthread_mutex_unlock(&sim_driver.lock);
}

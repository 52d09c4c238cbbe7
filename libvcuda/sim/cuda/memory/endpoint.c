/*
 * Logical endpoints of one card (CUDA 13.3): memory that other nodes address by an id. Here an endpoint is a number.
 * Memory that is bound to it is kept and paid for until it is unbound or the endpoint is destroyed. Endpoints of
 * several cards and endpoints for other processes are not simulated.
 */
#include "cuda/memory/physical.h"

typedef struct {
	unsigned type;
	CUdevice device;
	unsigned long long size;
	unsigned handle_types, flags;
} CUlogicalEndpointProp;

enum { UNICAST = 1, ENDPOINTS = 64 };

static struct endpoint {
	bool is_reserved;
	uint64_t size; /* 0: not created */
	CUdevice device;
	struct sim_binding *bindings;
} endpoints[ENDPOINTS];

/* Locks. NULL: the ids were not reserved. */
static struct endpoint *lock_endpoints(unsigned id, unsigned count)
{
	if (sim_init_ready() != CUDA_SUCCESS)
		return NULL;
	pthread_mutex_lock(&sim_driver.lock);
	for (unsigned i = 0; i < count; i++)
		if (id >= ENDPOINTS || i >= ENDPOINTS - id || !endpoints[id + i].is_reserved) {
			pthread_mutex_unlock(&sim_driver.lock);
			return NULL;
		}
	return &endpoints[id];
}

SIM_EXPORT CUresult cuLogicalEndpointIdReserve(unsigned *id, unsigned count)
{
	CUresult result = sim_init_ready();
	unsigned run = 0;

	if (result != CUDA_SUCCESS || !id || !count)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	pthread_mutex_lock(&sim_driver.lock);
	for (unsigned i = 0; i < ENDPOINTS && run < count; i++)
		if (endpoints[i].is_reserved)
			run = 0;
		else if (!run++)
			*id = i;
	for (unsigned i = 0; run == count && i < count; i++)
		endpoints[*id + i].is_reserved = true;
	return sim_object_unlock(run == count ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuLogicalEndpointGetLimits(uint64_t *alignment, uint64_t *size,
					       const CUlogicalEndpointProp *properties)
{
	REJECT(!alignment || !size || !properties);
	if (properties->type != UNICAST)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(sim_device(properties->device));
	*alignment = SIM_GRANULARITY;
	*size = sim_device_card(properties->device)->memory;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLogicalEndpointCreate(unsigned id, const CUlogicalEndpointProp *properties)
{
	uint64_t alignment, most;

	TRY(cuLogicalEndpointGetLimits(&alignment, &most, properties));
	if (properties->handle_types || properties->flags)
		return CUDA_ERROR_NOT_SUPPORTED;
	REJECT(!properties->size || properties->size % alignment || properties->size > most);
	struct endpoint *endpoint = lock_endpoints(id, 1);
	REJECT(!endpoint);
	if (endpoint->size)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	endpoint->size = properties->size;
	endpoint->device = properties->device;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* Under the lock. */
static CUresult bind_to_endpoint(struct endpoint *endpoint, CUdevice device, uint64_t offset,
				 struct sim_physical *memory, uint64_t memory_offset, uint64_t size)
{
	REJECT(!size || (size | offset | memory_offset) % SIM_GRANULARITY || memory->multicast_wanted ||
	       offset > endpoint->size || size > endpoint->size - offset ||
	       !sim_physical_fits(memory, memory_offset, size) || endpoint->device != device ||
	       sim_device_ordinal(memory->card) != device);
	return sim_physical_bind(&endpoint->bindings, device, offset, size, memory);
}

SIM_EXPORT CUresult cuLogicalEndpointBindMem(unsigned id, CUdevice device, uint64_t offset,
					     CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t size,
					     unsigned long long flags)
{
	struct endpoint *endpoint = flags ? NULL : lock_endpoints(id, 1);

	REJECT(!endpoint);
	if (!sim_object_is(memory, SIM_PHYSICAL))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(bind_to_endpoint(endpoint, device, offset, memory, memory_offset, size));
}

SIM_EXPORT CUresult cuLogicalEndpointBindAddr(unsigned id, CUdevice device, uint64_t offset, void *pointer,
					      uint64_t size, unsigned long long flags)
{
	struct endpoint *endpoint = flags ? NULL : lock_endpoints(id, 1);

	REJECT(!endpoint);
	const CUdeviceptr address = (uintptr_t)pointer;
	const struct sim_allocation *mapping = sim_allocation_at(address, size);
	if (!mapping || !mapping->physical)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(bind_to_endpoint(endpoint, device, offset, mapping->physical,
						  mapping->offset + (address - mapping->base), size));
}

SIM_EXPORT CUresult cuLogicalEndpointUnbind(unsigned id, CUdevice device, uint64_t offset, uint64_t size)
{
	struct endpoint *endpoint = lock_endpoints(id, 1);

	REJECT(!endpoint);
	bool found = endpoint->device == device && sim_physical_unbind(&endpoint->bindings, device, offset, size);
	return sim_object_unlock(found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult cuLogicalEndpointDestroy(unsigned id)
{
	struct endpoint *endpoint = lock_endpoints(id, 1);

	REJECT(!endpoint);
	if (!endpoint->size)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	sim_physical_unbind(&endpoint->bindings, SIM_ANY_DEVICE, 0, SIZE_MAX);
	endpoint->size = 0;
	return sim_object_unlock(CUDA_SUCCESS);
}

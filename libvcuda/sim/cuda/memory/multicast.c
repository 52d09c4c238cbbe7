/*
 * Multicast objects: memory of several cards behind one address, on boards with NVSwitches. Here an object is physical
 * memory that costs nothing and can be mapped. Memory that is bound to it is kept and paid for until it is unbound.
 * Writes to a multicast address do not reach the bound memory, because only kernels would make them.
 */
#include "cuda/memory/physical.h"

typedef struct {
	unsigned wanted; /* number of devices */
	size_t size;
	unsigned long long handle_types, flags;
} CUmulticastObjectProp;

static CUresult check_multicast(const CUmulticastObjectProp *properties)
{
	TRY(sim_init_ready());
	REJECT(!properties || properties->wanted < 1 || properties->wanted > SIM_MAX_CARDS || properties->flags);
	for (CUdevice device = 0; device < sim_driver.device_count; device++)
		if (sim_attribute_multicasts(device))
			return properties->handle_types & ~1ull ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties, int option)
{
	TRY(check_multicast(properties));
	REJECT(!granularity || option < 0 || option > 1);
	*granularity = SIM_GRANULARITY;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *properties)
{
	CUmemAllocationProp memory = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

	TRY(check_multicast(properties));
	REJECT(!out || !properties->size || properties->size % SIM_GRANULARITY);
	memory.requestedHandleTypes = (int)properties->handle_types;
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = sim_physical_new(out, &memory, sim_driver.devices[0].card, properties->size, false);
	if (result == CUDA_SUCCESS)
		(*out)->multicast_wanted = properties->wanted;
	return sim_object_unlock(result);
}

static CUresult lock_multicast(CUmemGenericAllocationHandle handle)
{
	TRY(sim_physical_lock(handle));
	if (!handle->multicast_wanted)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

static unsigned bits(unsigned mask)
{
	return (unsigned)__builtin_popcount(mask);
}

SIM_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
	TRY(sim_device(device));
	TRY(lock_multicast(handle));
	if (!sim_attribute_multicasts(device))
		return sim_object_unlock(CUDA_ERROR_NOT_SUPPORTED);
	if (handle->multicast_devices & 1u << device || bits(handle->multicast_devices) == handle->multicast_wanted)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	handle->multicast_devices |= 1u << device;
	return sim_object_unlock(CUDA_SUCCESS);
}

static bool overlaps(const struct sim_physical *multicast, CUdevice device, size_t offset, size_t size)
{
	for (const struct sim_binding *at = multicast->bindings; at; at = at->next)
		if (at->device == device && at->offset < offset + size && offset < at->offset + at->size)
			return true;
	return false;
}

/* Under the lock. */
static CUresult bind_memory(struct sim_physical *multicast, size_t offset, struct sim_physical *memory,
			    size_t memory_offset, size_t size)
{
	CUdevice device = sim_device_ordinal(memory->card);

	REJECT(!size || size % SIM_GRANULARITY || offset % SIM_GRANULARITY ||
	       !sim_physical_fits(multicast, offset, size) || memory_offset % SIM_GRANULARITY ||
	       !sim_physical_fits(memory, memory_offset, size) || memory->multicast_wanted ||
	       !(multicast->multicast_devices & 1u << device) || overlaps(multicast, device, offset, size));
	if (bits(multicast->multicast_devices) < multicast->multicast_wanted)
		return CUDA_ERROR_ILLEGAL_STATE;
	return sim_physical_bind(&multicast->bindings, device, offset, size, memory);
}

SIM_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
				       CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
				       unsigned long long flags)
{
	TRY(flags ? CUDA_ERROR_INVALID_VALUE : lock_multicast(handle));
	if (!sim_object_is(memory, SIM_PHYSICAL))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(bind_memory(handle, offset, memory, memory_offset, size));
}

SIM_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr pointer,
					size_t size, unsigned long long flags)
{
	TRY(flags ? CUDA_ERROR_INVALID_VALUE : lock_multicast(handle));
	const struct sim_allocation *mapping = sim_allocation_at(pointer, size);
	if (!mapping || !mapping->physical)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(
		bind_memory(handle, offset, mapping->physical, mapping->offset + (pointer - mapping->base), size));
}

SIM_EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size)
{
	TRY(lock_multicast(handle));
	for (struct sim_binding *at = handle->bindings; at; at = at->next)
		if (at->device == device && at->offset == offset && at->size == size) {
			sim_physical_unbind(&handle->bindings, device, offset, size);
			return sim_object_unlock(CUDA_SUCCESS);
		}
	return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
}

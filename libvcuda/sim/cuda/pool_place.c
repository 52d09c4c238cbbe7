/*
 * Which pool serves a place and a kind of memory: a device's own memory, managed memory that prefers a device, or host
 * memory. CUDA 13 selects pools by location and type; earlier versions have pools of devices only. The pools themselves
 * are in cuda/pool.c.
 */
#include "cuda/pool.h"

static struct sim_pool **default_of(CUdevice device, enum sim_memory memory)
{
	switch (memory) {
	case SIM_HOST_MEMORY: return &sim_driver.host_default;
	case SIM_MANAGED_MEMORY: return &sim_driver.devices[device].managed_default;
	default: return &sim_driver.devices[device].default_pool;
	}
}

struct sim_pool **sim_pool_place_in_force(CUdevice device, enum sim_memory memory)
{
	switch (memory) {
	case SIM_HOST_MEMORY: return &sim_driver.host_pool;
	case SIM_MANAGED_MEMORY: return &sim_driver.devices[device].managed_pool;
	default: return &sim_driver.devices[device].pool;
	}
}

struct sim_pool *sim_pool_place_standing(CUdevice device, enum sim_memory memory, bool wants_default)
{
	struct sim_pool **standard = default_of(device, memory), *in_force = *sim_pool_place_in_force(device, memory);

	if (!*standard)
		*standard = sim_pool_new(device, memory);
	return wants_default || !in_force ? *standard : in_force;
}

bool sim_pool_place_is_default(const struct sim_pool *pool)
{
	return pool == *default_of(pool->device, pool->memory);
}

/* Managed memory that prefers the host is not supported. Type 0 is for pools of the interface before types. */
CUresult sim_pool_place(const CUmemLocation *location, int type, CUdevice *device, enum sim_memory *memory)
{
	bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;

	if (type < 0 || type > CU_MEM_ALLOCATION_TYPE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type == CU_MEM_LOCATION_TYPE_HOST) {
		*device = 0;
		*memory = SIM_HOST_MEMORY;
		return managed ? CUDA_ERROR_NOT_SUPPORTED : sim_init_ready();
	}
	*device = location->id;
	*memory = managed ? SIM_MANAGED_MEMORY : SIM_DEVICE_MEMORY;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device(location->id) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_place_pool(CUmemoryPool *pool, const CUmemLocation *location, int type, bool wants_default)
{
	enum sim_memory memory;
	CUdevice device;

	TRY(pool && location && type ? sim_pool_place(location, type, &device, &memory)
	                                           : CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&sim_driver.lock);
	*pool = sim_pool_place_standing(device, memory, wants_default);
	return sim_object_unlock(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	return get_place_pool(pool, location, type, true);
}

SIM_EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type)
{
	return get_place_pool(pool, location, type, false);
}

SIM_EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	enum sim_memory memory;
	CUdevice device;
	CUresult result = location && type ? sim_pool_place(location, type, &device, &memory) : CUDA_ERROR_INVALID_VALUE;

	if (result == CUDA_SUCCESS)
		result = sim_pool_lock(pool);
	if (result != CUDA_SUCCESS)
		return result;
	if (pool->device == device && pool->memory == memory)
		*sim_pool_place_in_force(device, memory) = pool;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

/*
 * The calls for pools: by device, and since CUDA 13 by location and type; their attributes and access. The pools
 * themselves are in cuda/memory/pool.c.
 */
#include "cuda/memory/pool.h"

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, enum sim_memory memory, bool wants_default)
{
	pthread_mutex_lock(&sim_driver.lock);
	*pool = sim_pool_standing(device, memory, wants_default);
	return sim_object_unlock(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult set_pool(CUmemoryPool pool, CUdevice device, enum sim_memory memory)
{
	TRY(sim_pool_lock(pool));
	if (pool->device != device || pool->memory != memory)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	*sim_pool_in_force(device, memory) = pool;
	return sim_object_unlock(CUDA_SUCCESS);
}

static CUresult get_place_pool(CUmemoryPool *pool, const CUmemLocation *location, int type, bool wants_default)
{
	enum sim_memory memory;
	CUdevice device;

	TRY(pool && location && type ? sim_pool_of_place(location, type, &device, &memory) : CUDA_ERROR_INVALID_VALUE);
	return get_pool(pool, device, memory, wants_default);
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

	TRY(location && type ? sim_pool_of_place(location, type, &device, &memory) : CUDA_ERROR_INVALID_VALUE);
	return set_pool(pool, device, memory);
}

static CUresult get_device_pool(CUmemoryPool *pool, CUdevice device, bool wants_default)
{
	TRY(sim_device(device));
	return pool ? get_pool(pool, device, SIM_DEVICE_MEMORY, wants_default) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_device_pool(pool, device, true);
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_device_pool(pool, device, false);
}

SIM_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	TRY(sim_device(device));
	return set_pool(pool, device, SIM_DEVICE_MEMORY);
}

SIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	enum sim_memory memory;
	CUdevice device;

	REJECT(!pool || !properties);
	if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(sim_pool_of_place(&properties->location, properties->allocType, &device, &memory));
	pthread_mutex_lock(&sim_driver.lock);
	*pool = sim_pool_new(device, memory);
	if (*pool)
		(*pool)->handle_types = properties->handleTypes;
	return sim_object_unlock(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	TRY(sim_pool_lock(pool));
	if (sim_pool_is_default(pool))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	sim_pool_destroy(pool);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	TRY(sim_pool_lock(pool));
	sim_pool_shrink(pool, keep);
	return sim_object_unlock(CUDA_SUCCESS);
}

static CUresult set_attribute(struct sim_pool *pool, CUmemPool_attribute attribute, const void *value)
{
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		pool->settings[attribute] = *(const uint64_t *)value;
	else if (attribute >= 1 && attribute < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		pool->settings[attribute] = *(const int *)value != 0;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && *(const uint64_t *)value == 0)
		pool->high = pool->used;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && *(const uint64_t *)value == 0)
		pool->reserved_high = pool->reserved;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	TRY(value ? sim_pool_lock(pool) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(set_attribute(pool, attribute, value));
}

static CUresult get_attribute(const struct sim_pool *pool, CUmemPool_attribute attribute, void *value)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = (int)pool->settings[attribute];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->settings[attribute]; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->high; return CUDA_SUCCESS;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	TRY(value ? sim_pool_lock(pool) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(get_attribute(pool, attribute, value));
}

static CUresult check_access(const struct sim_pool *pool, const CUmemAccessDesc *access)
{
	REJECT(access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	       sim_device(access->location.id) != CUDA_SUCCESS ||
	       (access->flags != 0 && access->flags != 1 && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	/* The device that has the memory always has access. */
	return access->location.id == pool->device && !access->flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	CUresult result = map && count ? sim_pool_lock(pool) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
		result = check_access(pool, &map[i]);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
		pool->access[map[i].location.id] = (unsigned char)map[i].flags;
	return sim_object_unlock(result);
}

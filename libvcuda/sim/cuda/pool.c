/*
 * Stream-ordered allocation and pools. A pool keeps freed memory up to its release threshold, which is 0 unless set;
 * the rest goes back to the card at once (the real driver waits for the next synchronization). Pools by place are in
 * cuda/pool_place.c, exported ones in cuda/pool_share.c.
 */
#include "cuda/pool.h"
#include "cuda/work.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes)
{
	uint64_t used = pool->used + bytes;

	if (used > pool->reserved) {
		CUresult result = pool->memory == SIM_HOST_MEMORY
		                      ? CUDA_SUCCESS
		                      : sim_init_result(sim_ledger_reserve(sim_driver.devices[pool->device].card,
		                                                           used - pool->reserved));
		if (result != CUDA_SUCCESS)
			return result;
		pool->reserved = used;
	}
	pool->used = used;
	pool->high = larger(pool->high, used);
	pool->reserved_high = larger(pool->reserved_high, pool->reserved);
	return CUDA_SUCCESS;
}

static void shrink(struct sim_pool *pool, uint64_t keep)
{
	uint64_t rest = larger(pool->used, keep);

	if (rest >= pool->reserved)
		return;
	if (pool->memory != SIM_HOST_MEMORY)
		sim_ledger_release(sim_driver.devices[pool->device].card, pool->reserved - rest);
	pool->reserved = rest;
}

void sim_pool_give(struct sim_pool *pool, uint64_t bytes)
{
	pool->used -= bytes;
	shrink(pool, pool->doomed ? 0 : pool->settings[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD]);
}

struct sim_pool *sim_pool_new(CUdevice device, enum sim_memory memory)
{
	struct sim_pool *pool = sim_object_create(sizeof *pool, SIM_POOL, NULL);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->memory = memory;
	pool->next = sim_driver.devices[device].pools;
	sim_driver.devices[device].pools = pool;
	for (int i = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES; i < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD; i++)
		pool->settings[i] = 1;
	return pool;
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, bool wants_default)
{
	TRY(sim_device(device));
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	*pool = sim_pool_place_standing(device, SIM_DEVICE_MEMORY, wants_default);
	return sim_object_unlock(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_pool(pool, device, true);
}

SIM_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	return get_pool(pool, device, false);
}

/* As in the real driver, a pool that does not exist is an invalid value here, not an invalid handle. */
CUresult sim_pool_lock(CUmemoryPool pool)
{
	CUresult result = sim_object_lock(pool, SIM_POOL);

	if (result == CUDA_SUCCESS && pool->doomed) {
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	}
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = sim_device(device);

	if (result == CUDA_SUCCESS)
		result = sim_pool_lock(pool);
	if (result != CUDA_SUCCESS)
		return result;
	if (pool->device == device && pool->memory == SIM_DEVICE_MEMORY)
		sim_driver.devices[device].pool = pool;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

static void bury_doomed(struct sim_device *device)
{
	for (struct sim_pool **at = &device->pools; *at;) {
		struct sim_pool *pool = *at;
		if (pool->doomed && !pool->allocations) {
			shrink(pool, 0);
			*at = pool->next;
			sim_object_destroy(pool);
		} else {
			at = &pool->next;
		}
	}
}

void sim_pool_drop_all(CUdevice device)
{
	for (struct sim_pool *pool = sim_driver.devices[device].pools; pool; pool = pool->next) {
		sim_allocation_drop_all(&pool->allocations);
		shrink(pool, 0);
	}
	bury_doomed(&sim_driver.devices[device]);
}

SIM_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	enum sim_memory memory;
	CUdevice device;

	if (!pool || !properties)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(sim_pool_place(&properties->location, properties->allocType, &device, &memory));
	pthread_mutex_lock(&sim_driver.lock);
	*pool = sim_pool_new(device, memory);
	if (*pool)
		(*pool)->handle_types = properties->handleTypes;
	return sim_object_unlock(*pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Memory that was allocated from the pool stays allocated. */
SIM_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = sim_pool_lock(pool);

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_device *device = &sim_driver.devices[pool->device];
	if (sim_pool_place_is_default(pool)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct sim_pool **in_force = sim_pool_place_in_force(pool->device, pool->memory);
		if (*in_force == pool)
			*in_force = NULL;
		pool->doomed = true;
		bury_doomed(device);
	}
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	TRY(sim_pool_lock(pool));
	shrink(pool, keep);
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
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(uint64_t *)value = pool->settings[attribute];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = pool->high; return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	TRY(value ? sim_pool_lock(pool) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(get_attribute(pool, attribute, value));
}

static CUresult check_access(const struct sim_pool *pool, const CUmemAccessDesc *access)
{
	if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || sim_device(access->location.id) != CUDA_SUCCESS ||
	    (access->flags != 0 && access->flags != 1 && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
		return CUDA_ERROR_INVALID_VALUE;
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

/* In a capture the allocation becomes a node. */
static CUresult capture_allocation(CUdeviceptr *pointer, size_t size, CUdevice device, CUstream stream)
{
	char *at = sim_allocation_reserve_addresses((size + 0xffff) & ~(size_t)0xffff, 1 << 21, 0);
	struct sim_work work = {
		.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
		.memory = {(CUdeviceptr)(uintptr_t)at, size, device},
	};

	*pointer = work.memory.pointer;
	return at ? sim_queue_submit(stream, &work, false) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct sim_allocation *allocation;
	int capturing;

	TRY(cuStreamIsCapturing(stream, &capturing));
	if (!pointer || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (capturing && pool->memory != SIM_DEVICE_MEMORY)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (capturing)
		return capture_allocation(pointer, size, pool->device, stream);
	TRY(sim_allocation_new(NULL, pool, pool->memory, size, &allocation));
	*pointer = allocation->base;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct sim_context *context;
	CUmemoryPool pool;

	TRY(sim_context_current(&context));
	TRY(get_pool(&pool, context->device, false));
	return allocate_from(pointer, size, pool, stream);
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	TRY(sim_pool_lock(pool));
	bool is_imported = pool->is_imported;
	pthread_mutex_unlock(&sim_driver.lock);
	if (is_imported)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_from(pointer, size, pool, stream);
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory.pointer = pointer};
	int capturing;

	TRY(cuStreamIsCapturing(stream, &capturing));
	if (!capturing)
		TRY(sim_allocation_free_later(pointer));
	return sim_queue_submit(stream, &work, false);
}

/*
 * Pools: the memory that they keep, which pool serves a place (a device's own memory, managed memory that prefers a
 * device, or host memory), and their end. A pool keeps freed memory up to its release threshold, which is 0 unless set;
 * the rest goes back to the card at once (the real driver waits for the next synchronization). The calls are in
 * cuda/memory/pool_call.c, stream-ordered ones in cuda/work/stream_memory.c, exported pools in cuda/memory/pool_share.c.
 */
#include "cuda/memory/pool.h"

uint64_t sim_pool_chunks(uint64_t bytes)
{
	uint64_t chunk = sim_state_header()->pool_chunk_bytes;

	return chunk && bytes % chunk && bytes < UINT64_MAX - chunk ? bytes - bytes % chunk + chunk : bytes;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool is_unlisted(const struct sim_pool *pool)
{
	return pool->memory == SIM_MANAGED_MEMORY;
}

static CUresult grow(const struct sim_pool *pool, uint64_t bytes)
{
	TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[pool->device].card, bytes)));
	if (is_unlisted(pool))
		sim_ledger_unlist(sim_driver.devices[pool->device].card, (int64_t)bytes);
	return CUDA_SUCCESS;
}

/* Charges the card for what the pool has not kept. */
static CUresult take_bytes(struct sim_allocation *allocation)
{
	struct sim_pool *pool = allocation->pool;
	uint64_t used = pool->used + allocation->charged;

	if (used > pool->reserved) {
		if (pool->memory != SIM_HOST_MEMORY)
			TRY(grow(pool, sim_pool_chunks(used) - pool->reserved));
		pool->reserved = sim_pool_chunks(used);
	}
	pool->used = used;
	pool->high = larger(pool->high, used);
	pool->reserved_high = larger(pool->reserved_high, pool->reserved);
	return CUDA_SUCCESS;
}

void sim_pool_shrink(struct sim_pool *pool, uint64_t keep)
{
	uint64_t rest = sim_pool_chunks(larger(pool->used, keep));

	if (rest >= pool->reserved)
		return;
	if (is_unlisted(pool))
		sim_ledger_unlist(sim_driver.devices[pool->device].card, -(int64_t)(pool->reserved - rest));
	if (pool->memory != SIM_HOST_MEMORY)
		sim_ledger_release(sim_driver.devices[pool->device].card, pool->reserved - rest);
	pool->reserved = rest;
}

static void give_bytes(struct sim_allocation *allocation)
{
	struct sim_pool *pool = allocation->pool;

	if (allocation->shared)
		sim_shares_forget(allocation->shared - 1);
	pool->used -= allocation->charged;
	sim_pool_shrink(pool, pool->doomed ? 0 : pool->settings[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD]);
}

static const struct sim_payer pool_payer = {.take = take_bytes, .give = give_bytes};

struct sim_pool *sim_pool_new(CUdevice device, enum sim_memory memory)
{
	struct sim_pool *pool = sim_object_create(sizeof *pool, SIM_POOL, NULL);

	if (!pool)
		return NULL;
	pool->device = device;
	pool->memory = memory;
	pool->payer = &pool_payer;
	pool->next = sim_driver.devices[device].pools;
	sim_driver.devices[device].pools = pool;
	for (int i = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES; i < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD; i++)
		pool->settings[i] = 1;
	return pool;
}

/* As in the real driver, a pool that does not exist is an invalid value here, not an invalid handle. */
CUresult sim_pool_lock(CUmemoryPool pool)
{
	CUresult result = sim_object_lock(pool, SIM_POOL);

	if (result == CUDA_SUCCESS && pool->doomed)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

static void bury_doomed(struct sim_device *device)
{
	for (struct sim_pool **at = &device->pools; *at;) {
		struct sim_pool *pool = *at;
		if (pool->doomed && !pool->allocations) {
			sim_pool_shrink(pool, 0);
			*at = pool->next;
			sim_object_destroy(pool);
		} else {
			at = &pool->next;
		}
	}
}

/* Memory that was allocated from the pool stays allocated. */
void sim_pool_destroy(struct sim_pool *pool)
{
	struct sim_pool **in_force = sim_pool_in_force(pool->device, pool->memory);

	if (*in_force == pool)
		*in_force = NULL;
	pool->doomed = true;
	bury_doomed(&sim_driver.devices[pool->device]);
}

static struct sim_pool **default_of(CUdevice device, enum sim_memory memory)
{
	switch (memory) {
	case SIM_HOST_MEMORY: return &sim_driver.host_default;
	case SIM_MANAGED_MEMORY: return &sim_driver.devices[device].managed_default;
	default: return &sim_driver.devices[device].default_pool;
	}
}

struct sim_pool **sim_pool_in_force(CUdevice device, enum sim_memory memory)
{
	switch (memory) {
	case SIM_HOST_MEMORY: return &sim_driver.host_pool;
	case SIM_MANAGED_MEMORY: return &sim_driver.devices[device].managed_pool;
	default: return &sim_driver.devices[device].pool;
	}
}

struct sim_pool *sim_pool_standing(CUdevice device, enum sim_memory memory, bool wants_default)
{
	struct sim_pool **standard = default_of(device, memory), *in_force = *sim_pool_in_force(device, memory);

	if (!*standard)
		*standard = sim_pool_new(device, memory);
	return wants_default || !in_force ? *standard : in_force;
}

bool sim_pool_is_default(const struct sim_pool *pool)
{
	return pool == *default_of(pool->device, pool->memory);
}

/* Managed memory that prefers the host is not supported. Type 0 is for pools of the interface before types. */
CUresult sim_pool_of_place(const CUmemLocation *location, int type, CUdevice *device, enum sim_memory *memory)
{
	bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;

	REJECT(type < 0 || type > CU_MEM_ALLOCATION_TYPE_MANAGED);
	if (location->type == CU_MEM_LOCATION_TYPE_HOST) {
		*device = 0;
		*memory = SIM_HOST_MEMORY;
		return managed ? CUDA_ERROR_NOT_SUPPORTED : sim_init_ready();
	}
	*device = location->id;
	*memory = managed ? SIM_MANAGED_MEMORY : SIM_DEVICE_MEMORY;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device(location->id) : CUDA_ERROR_INVALID_VALUE;
}

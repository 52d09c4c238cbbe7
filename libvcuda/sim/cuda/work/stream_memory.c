/*
 * Memory in the order of a stream: allocations from pools, frees, and prefetches of managed memory, which have no
 * effect because nothing migrates. In a capture they become nodes. Pools are in cuda/memory/pool.c.
 */
#include "cuda/memory/pool.h"
#include "cuda/work/submit.h"

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
	REJECT(!pointer || !size);
	if (capturing && pool->memory != SIM_DEVICE_MEMORY)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (capturing)
		return capture_allocation(pointer, size, pool->device, stream);
	TRY(sim_allocation_new(NULL, pool, pool->memory, size, &allocation));
	*pointer = allocation->base;
	return CUDA_SUCCESS;
}

/* The pool is that of the stream's device, whichever context is current. */
SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
	struct sim_context *context;

	TRY(sim_stream_context(stream, &context));
	pthread_mutex_lock(&sim_driver.lock);
	CUmemoryPool pool = sim_pool_standing(context->device, SIM_DEVICE_MEMORY, false);
	pthread_mutex_unlock(&sim_driver.lock);
	return pool ? allocate_from(pointer, size, pool, stream) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	TRY(sim_pool_lock(pool));
	bool is_imported = pool->is_imported;
	pthread_mutex_unlock(&sim_driver.lock);
	REJECT(is_imported);
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

static CUresult check_managed(CUdeviceptr pointer, size_t bytes)
{
	TRY(sim_init_ready());
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, bytes);
	bool managed = allocation && allocation->memory == SIM_MANAGED_MEMORY;
	return sim_object_unlock(managed && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUstream stream)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	TRY(check_managed(pointer, bytes));
	return sim_queue_submit(stream, &work, false);
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
	(void)device;
	return prefetch(pointer, bytes, stream);
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
					  CUstream stream)
{
	(void)location;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, bytes, stream);
}

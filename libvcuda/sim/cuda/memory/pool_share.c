/*
 * Pools of another process. A pool is exported as a file descriptor that contains only its device; its memory is
 * exported pointer by pointer. The exporter pays for the memory and its free returns it; the importer's free only
 * unmaps it.
 */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cuda/memory/ipc.h"
#include "cuda/memory/pool.h"
#include "cuda/memory/share.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

SIM_EXPORT CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
	CUresult result = out && !flags && type == FD ? sim_pool_lock(pool) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	int fd = -1;
	if (!(pool->handle_types & type) || pool->is_imported)
		result = CUDA_ERROR_INVALID_VALUE;
	else if ((fd = sim_share_create(sim_driver.devices[pool->device].card, 1)) < 0)
		result = CUDA_ERROR_OPERATING_SYSTEM;
	else
		*(int *)out = fd;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
						       unsigned long long flags)
{
	unsigned card;
	size_t size;

	TRY(sim_init_ready());
	REJECT(!out || flags || type != FD || !sim_share_adopt((int)(intptr_t)handle, &card, &size) || size != 1);
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_pool_new(sim_device_ordinal(card), SIM_DEVICE_MEMORY);
	if (*out)
		(*out)->is_imported = true;
	return sim_object_unlock(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuMemPoolExportPointer(CUipcMemHandle *out, CUdeviceptr pointer)
{
	struct sim_ipc_handle handle = sim_ipc_handle_new(SIM_IPC_POOLED);
	CUresult result = out ? sim_init_ready() : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, 0);
	if (!allocation || !allocation->pool || !(allocation->pool->handle_types & FD))
		result = CUDA_ERROR_INVALID_VALUE;
	else
		result = sim_ipc_export(allocation, pointer, &handle);
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS)
		memcpy(out, &handle, sizeof handle);
	return result;
}

static CUresult import_pointer(struct sim_context *context, const struct sim_ipc_handle *handle, CUdeviceptr *pointer)
{
	struct sim_allocation *allocation;
	int fd = sim_ipc_open(handle);

	REJECT(fd < 0);
	CUresult result = sim_ipc_import(context, SIM_EXTERNAL_MEMORY, handle, fd, &allocation);
	close(fd);
	if (result == CUDA_SUCCESS && handle->offset > allocation->size) {
		sim_allocation_drop(allocation);
		result = CUDA_ERROR_INVALID_VALUE;
	}
	if (result == CUDA_SUCCESS)
		*pointer = allocation->base + handle->offset;
	return result;
}

SIM_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, const CUipcMemHandle *data)
{
	struct sim_context *context;
	struct sim_ipc_handle handle;

	TRY(sim_context_current(&context));
	REJECT(!pointer || !data);
	memcpy(&handle, data, sizeof handle);
	TRY(sim_ipc_check(&handle, SIM_IPC_POOLED));
	TRY(sim_pool_lock(pool));
	return sim_object_unlock(pool->is_imported ? import_pointer(context, &handle, pointer)
						   : CUDA_ERROR_INVALID_VALUE);
}

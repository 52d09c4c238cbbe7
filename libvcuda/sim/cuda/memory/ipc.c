/*
 * Memory of another process, by IPC handle or as external memory. The exporter pays for the memory. The importer only
 * maps it and keeps its bytes if the exporter ends. Events of another process are in cuda/work/ipc_event.c; pools that
 * are exported in cuda/memory/pool_share.c.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/memory/ipc.h"
#include "cuda/memory/share.h"

_Static_assert(sizeof(struct sim_ipc_handle) == sizeof(CUipcMemHandle), "an IPC handle");

static uint64_t own_token(void)
{
	static char mark; /* where this process has it: pids are not unique over namespaces */

	return (uint64_t)(uintptr_t)&mark ^ (uint64_t)getpid() << 48;
}

struct sim_ipc_handle sim_ipc_handle_new(const char magic[8])
{
	struct sim_ipc_handle handle = {.pid = getpid(), .fd = -1, .owner = own_token()};

	memcpy(handle.magic, magic, sizeof handle.magic);
	return handle;
}

CUresult sim_ipc_check(const struct sim_ipc_handle *handle, const char magic[8])
{
	REJECT(memcmp(handle->magic, magic, sizeof handle->magic));
	/* The process that made the handle must not open it. */
	return handle->owner == own_token() && handle->pid == getpid() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

bool sim_ipc_put_file(struct sim_ipc_handle *handle, int fd)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0)
		return false;
	handle->fd = fd;
	handle->file = st.st_ino;
	return true;
}

/* By any of the exporter's threads: its main one may have ended. */
static int open_of(const struct sim_ipc_handle *handle)
{
	char path[64];
	const struct dirent *entry;
	int fd = -1;

	snprintf(path, sizeof path, "/proc/%d/task", handle->pid);
	DIR *tasks = opendir(path);
	while (tasks && fd < 0 && (entry = readdir(tasks))) {
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/fd/%d", handle->pid, entry->d_name, handle->fd);
		fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	}
	if (tasks)
		closedir(tasks);
	return fd;
}

int sim_ipc_open(const struct sim_ipc_handle *handle)
{
	int fd = open_of(handle);
	struct stat st;
	if (fd < 0 || (fstat(fd, &st) == 0 && st.st_ino == handle->file))
		return fd;
	close(fd);
	return -1;
}

CUresult sim_ipc_export(struct sim_allocation *allocation, CUdeviceptr pointer, struct sim_ipc_handle *handle)
{
	if (!sim_ipc_put_file(handle, sim_share_backing(allocation)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	handle->offset = pointer - allocation->base;
	handle->id = allocation->id;
	if (!allocation->shared)
		allocation->shared =
			sim_shares_add(allocation->card, allocation->charged, &allocation->shared_generation) + 1;
	handle->shared = allocation->shared - 1;
	handle->generation = allocation->shared_generation;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer)
{
	struct sim_ipc_handle handle = sim_ipc_handle_new(SIM_IPC_MEMORY);
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	REJECT(!out);
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, 0);
	if (!allocation || allocation->memory == SIM_IMPORTED_MEMORY)
		result = CUDA_ERROR_INVALID_VALUE; /* of an import, too, as a driver does: docs/reality.md */
	else if (allocation->memory != SIM_DEVICE_MEMORY || !allocation->context)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		result = sim_ipc_export(allocation, pointer, &handle);
	pthread_mutex_unlock(&sim_driver.lock);
	if (result == CUDA_SUCCESS)
		memcpy(out, &handle, sizeof handle);
	return result;
}

/* Finds the same memory if this context has opened it before: then it is counted, not mapped again. Under the lock. */
static struct sim_allocation *opened(struct sim_context *context, const struct sim_ipc_handle *handle)
{
	for (struct sim_allocation *at = context->allocations; at; at = at->next)
		if (at->memory == SIM_IMPORTED_MEMORY && at->imported_id == handle->id &&
		    at->imported_pid == handle->pid && !at->is_leaving)
			return at;
	return NULL;
}

static CUresult map_foreign(struct sim_allocation *allocation, int fd)
{
	char *at = sim_allocation_reserve_addresses(allocation->mapped, 1 << 16, 0);
	char *backing = mmap(NULL, allocation->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	allocation->base = (CUdeviceptr)(uintptr_t)at;
	allocation->backing = backing;
	if (at && backing != MAP_FAILED && sim_allocation_insert(allocation))
		return CUDA_SUCCESS;
	if (at)
		munmap(at, allocation->mapped);
	if (backing != MAP_FAILED)
		munmap(backing, allocation->mapped);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_ipc_import(struct sim_context *context, enum sim_memory memory, const struct sim_ipc_handle *handle,
			int fd, struct sim_allocation **out)
{
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	unsigned card;
	size_t size;
	int life = 0;

	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	if (handle->shared >= 0)
		life = sim_shares_hold(handle->shared, handle->generation);
	if (life >= 0 && sim_share_adopt(fd, &card, &size)) {
		allocation->context = context;
		allocation->memory = memory;
		allocation->card = card;
		allocation->size = allocation->mapped = size;
		allocation->imported_id = handle->id;
		allocation->imported_pid = handle->pid;
		allocation->life_fd = life;
		result = map_foreign(allocation, fd);
	}
	if (result != CUDA_SUCCESS) {
		if (life > 0)
			close(life);
		free(allocation);
	}
	*out = allocation;
	return result;
}

static CUresult open_memory(struct sim_context *context, const struct sim_ipc_handle *handle, CUdeviceptr *pointer)
{
	struct sim_allocation *allocation = opened(context, handle);
	CUresult result = CUDA_SUCCESS;

	if (!allocation) {
		int fd = sim_ipc_open(handle);
		REJECT(fd < 0);
		result = sim_ipc_import(context, SIM_IMPORTED_MEMORY, handle, fd, &allocation);
		close(fd);
	}
	if (result != CUDA_SUCCESS)
		return result;
	REJECT(handle->offset > allocation->size);
	allocation->imports++;
	*pointer = allocation->base + handle->offset;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle opaque, unsigned flags)
{
	struct sim_context *context;
	struct sim_ipc_handle handle;
	CUresult result = sim_context_current(&context);

	memcpy(&handle, &opaque, sizeof handle);
	if (result != CUDA_SUCCESS)
		return result;
	TRY(pointer && flags <= 1 ? sim_ipc_check(&handle, SIM_IPC_MEMORY) : CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&sim_driver.lock);
	return sim_object_unlock(open_memory(context, &handle, pointer));
}

SIM_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, 0);
	if (!allocation || allocation->memory != SIM_IMPORTED_MEMORY || allocation->is_leaving)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (--allocation->imports == 0)
		sim_allocation_free(allocation);
	return sim_object_unlock(result);
}

/*
 * External memory: what another interface exported as a file descriptor. Only memory of this simulator can be imported.
 */
struct external_handle { /* CUDA_EXTERNAL_MEMORY_HANDLE_DESC */
	int type;
	union {
		int fd;
		void *pair[2];
	} handle;
	unsigned long long size;
	unsigned flags, reserved[16];
};

struct external_buffer { /* CUDA_EXTERNAL_MEMORY_BUFFER_DESC */
	unsigned long long offset, size;
	unsigned flags, reserved[16];
};

struct sim_external {
	struct sim_object object;
	CUdeviceptr base;
	size_t size;
};

#define EXTERNAL_FD 1

/* As documented, the driver owns the descriptor once the import has succeeded. */
SIM_EXPORT CUresult cuImportExternalMemory(struct sim_external **out, const struct external_handle *from)
{
	struct sim_ipc_handle handle = {.pid = -1, .shared = -1};
	int fd, life;
	struct sim_allocation *allocation;
	struct sim_context *context;

	TRY(sim_context_current(&context));
	REJECT(!out || !from);
	if (from->type != EXTERNAL_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_object_create(sizeof **out, SIM_EXTERNAL, context);
	bool is_exported = sim_share_import(from->handle.fd, &fd, &life);
	CUresult result = *out ? sim_ipc_import(context, SIM_EXTERNAL_MEMORY, &handle,
						is_exported ? fd : from->handle.fd, &allocation)
			       : CUDA_ERROR_OUT_OF_MEMORY;
	if (is_exported)
		close(fd);
	if (is_exported && result != CUDA_SUCCESS)
		close(life);
	if (result == CUDA_SUCCESS) {
		allocation->life_fd = is_exported ? life : 0;
		(*out)->base = allocation->base;
		(*out)->size = allocation->size;
		close(from->handle.fd);
	} else if (*out) {
		sim_object_destroy(*out);
	}
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, struct sim_external *external,
						    const struct external_buffer *buffer)
{
	CUresult result = pointer && buffer ? sim_object_lock(external, SIM_EXTERNAL) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	if (buffer->offset > external->size || buffer->size > external->size - buffer->offset)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*pointer = external->base + buffer->offset;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuDestroyExternalMemory(struct sim_external *external)
{
	TRY(sim_object_lock(external, SIM_EXTERNAL));
	CUdeviceptr base = external->base;
	sim_object_destroy(external);
	pthread_mutex_unlock(&sim_driver.lock);
	/* Frees only if the program has not freed the buffer, as it should. */
	sim_allocation_free_pointer(base, SIM_FREE_EXTERNAL);
	return CUDA_SUCCESS;
}

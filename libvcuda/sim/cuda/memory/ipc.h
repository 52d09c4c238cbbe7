/*
 * IPC handles: what one process passes to another so that the other finds its memory or its event. Used for memory
 * (cuda/memory/ipc.c), for pointers of exported pools (cuda/memory/pool_share.c) and for events
 * (cuda/work/ipc_event.c).
 */
#ifndef CUDA_IPC_H
#define CUDA_IPC_H

#include "cuda/memory/allocation.h"

struct sim_ipc_handle {
	char magic[8];
	int32_t pid;
	int32_t fd;
	uint64_t offset; /* of the pointer in its allocation */
	uint64_t id;
	uint64_t owner; /* identifies this process' own handles */
	int32_t shared;  /* the memory's number among the exported memory; -1: it has none */
	uint32_t generation; /* of that number */
	uint64_t file; /* the inode number of `fd`, since the process may have closed it and reused the number */
	char padding[8];
};

#define SIM_IPC_MEMORY "vgpu-ipc"
#define SIM_IPC_POOLED "vgpu-ptr"
#define SIM_IPC_EVENT "vgpu-evt"

struct sim_ipc_handle sim_ipc_handle_new(const char magic[8]);
/* Stores where the other process finds the file. False: an error. */
bool sim_ipc_put_file(struct sim_ipc_handle *handle, int fd);
/* Checks that the handle is of that kind and was made by another process. */
CUresult sim_ipc_check(const struct sim_ipc_handle *handle, const char magic[8]);
/* The other process' file; -1: it is closed, the process has ended, or cannot be seen from here. */
int sim_ipc_open(const struct sim_ipc_handle *handle);
/* Stores where the memory lies; the allocation is shared from now on. Under the lock. */
CUresult sim_ipc_export(struct sim_allocation *allocation, CUdeviceptr pointer, struct sim_ipc_handle *handle);
/* Maps the file's memory; nothing is charged. Under the lock. */
CUresult sim_ipc_import(struct sim_context *context, enum sim_memory memory, const struct sim_ipc_handle *handle,
			int fd, struct sim_allocation **out);

#endif

/*
 * A libnvidia-ml.so.1 that has one card and one process on it, the caller. It belongs to null_driver.c: libvcuda asks
 * NVML when a context is made.
 */
#include <unistd.h>

int nvmlInit_v2(void)
{
	return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
	*device = (void *)uuid;
	return 0;
}

struct process {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct process *list)
{
	*count = 1;
	list[0] = (struct process){(unsigned int)getpid(), 64 << 20, ~0u, ~0u};
	return 0;
}

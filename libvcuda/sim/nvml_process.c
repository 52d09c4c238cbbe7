/*
 * The processes on a card. The real driver reports pids of the initial PID namespace. Here a pid is what the kernel
 * tells the asker (the host's, when asked on the host; see sim_state.h); of a process that the asker's namespace does
 * not contain only the number is known that the process has in its own.
 */
#include <string.h>

#include "nvml_sim.h"
#include "trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2)

/* `list` gets the processes, *count their number; with too small a *count only that, and INSUFFICIENT_SIZE. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, const void *out,
                              struct sim_process list[SIM_MAX_SLOTS])
{
	nvmlReturn_t result = sim_nvml_check(device, count);

	if (result != NVML_SUCCESS)
		return result;
	unsigned room = *count;
	result = sim_nvml_return(sim_processes(sim_nvml_card(device), list, SIM_MAX_SLOTS, count));
	if (result != NVML_SUCCESS)
		return result;
	if (*count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return *count && !out ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                             nvmlProcessInfo_v1_t *out)
{
	struct sim_process list[SIM_MAX_SLOTS];
	nvmlReturn_t result = processes(device, count, out, list);

	for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
		out[i] = (nvmlProcessInfo_v1_t){.pid = (unsigned)list[i].pid, .usedGpuMemory = list[i].used};
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                                nvmlProcessInfo_v2_t *out)
{
	struct sim_process list[SIM_MAX_SLOTS];
	nvmlReturn_t result = processes(device, count, out, list);

	for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
		out[i] = (nvmlProcessInfo_v2_t){
			.pid = (unsigned)list[i].pid,
			.usedGpuMemory = list[i].used,
			.gpuInstanceId = NVML_NO_INSTANCE,
			.computeInstanceId = NVML_NO_INSTANCE,
		};
	return result;
}

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count)
{
	nvmlReturn_t result = sim_nvml_check(device, count);

	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_v1_t *out)
{
	(void)out;
	return nobody(device, count);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                                 nvmlProcessInfo_v2_t *out)
{
	(void)out;
	return nobody(device, count);
}

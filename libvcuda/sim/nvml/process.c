/*
 * The processes on a card. Drivers since about R515 list those of the caller's PID namespace with its pids (the host's
 * pids on the host; see state/state.h). Older drivers list the host's pids to every caller: VGPU_SIM_PIDS=host in a
 * container's environment makes pids that no process there has. Samples of use (nvml/activity.c) of a process that the
 * caller's namespace does not have keep the host's pid with every driver, as in NVIDIA's open kernel modules.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml/nvml_sim.h"
#include "state/trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v2)
SIM_TRAMPOLINE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2)

enum { HOSTS_PID = 1 << 21 };

static bool are_hosts(void)
{
	const char *pids = getenv("VGPU_SIM_PIDS");

	return pids && !strcmp(pids, "host");
}

unsigned sim_nvml_process_pid(pid_t pid, bool known)
{
	return (unsigned)pid + (are_hosts() || !known ? HOSTS_PID : 0);
}

static unsigned as_told(struct sim_process list[SIM_MAX_SLOTS], unsigned count)
{
	unsigned told = 0;

	for (unsigned i = 0; i < count; i++) {
		if (!are_hosts() && !list[i].known)
			continue;
		list[told] = list[i];
		list[told++].pid = (pid_t)sim_nvml_process_pid(list[i].pid, list[i].known);
	}
	return told;
}

/*
 * Stores the processes in `list` and their number in *count. If *count is too small, only the number, with
 * INSUFFICIENT_SIZE.
 */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, const void *out,
			      struct sim_process list[SIM_MAX_SLOTS])
{
	TRY(sim_nvml_init_check_sum(device, count));
	unsigned room = *count;
	TRY(sim_nvml_init_return(sim_ledger_processes(sim_nvml_init_card(device), list, SIM_MAX_SLOTS, count)));
	*count = as_told(list, *count < SIM_MAX_SLOTS ? *count : SIM_MAX_SLOTS);
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
			.gpuInstanceId = list[i].gi,
			.computeInstanceId = list[i].ci,
		};
	return result;
}

typedef struct {
	unsigned version, mode, count; /* mode: 0 compute, 1 graphics, 2 MPS */
	struct {
		unsigned pid;
		unsigned long long used;
		unsigned gpu_instance, compute_instance;
		unsigned long long protected_used;
	} *processes;
} nvmlProcessDetailList_t;

_Static_assert(sizeof(nvmlProcessDetailList_t) == 24, "nvmlProcessDetailList_t");

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out)
{
	struct sim_process list[SIM_MAX_SLOTS];

	TRY(sim_nvml_init_check_any(device, out));
	if (out->version != (sizeof *out | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	REJECT(out->mode > 2);
	if (out->mode) {
		out->count = 0;
		return NVML_SUCCESS;
	}
	nvmlReturn_t result = processes(device, &out->count, out->processes, list);
	for (unsigned i = 0; result == NVML_SUCCESS && i < out->count; i++) {
		out->processes[i].pid = (unsigned)list[i].pid;
		out->processes[i].used = list[i].used;
		out->processes[i].gpu_instance = list[i].gi;
		out->processes[i].compute_instance = list[i].ci;
		out->processes[i].protected_used = 0;
	}
	return result;
}

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count)
{
	TRY(sim_nvml_init_check_sum(device, count));
	*count = 0;
	return NVML_SUCCESS;
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

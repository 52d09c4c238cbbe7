/*
 * Implements memory/nvml_lists.h. It loads NVML by name first. That puts libvcuda's own libnvidia-ml in the loader's list
 * before the real one, and a program that looks for the name later gets libvcuda's. Then it calls the real library
 * behind it.
 */
#include "memory/nvml_lists.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

#include "nvml_abi.h"
#include "vgpu_limits.h"

struct nvml {
	__typeof__(nvmlInit_v2) *init;
	__typeof__(nvmlDeviceGetHandleByUUID) *by_uuid;
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
	__typeof__(nvmlDeviceGetComputeRunningProcesses) *processes_v1;
};

static struct nvml nvml;
static bool is_looked_for;
static bool usable;
static atomic_bool useless;

void nvml_lists_reset(void)
{
	is_looked_for = false;
	atomic_store(&useless, false);
}

bool nvml_lists_are_useless(void)
{
	return atomic_load(&useless);
}

static bool find_nvml(void)
{
	if (!dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL))
		return false;
	void *real = dlopen(VGPU_REAL_DIR "/libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!real)
		return false;
	nvml.init = (__typeof__(nvml.init))dlsym(real, "nvmlInit_v2");
	nvml.by_uuid = (__typeof__(nvml.by_uuid))dlsym(real, "nvmlDeviceGetHandleByUUID");
	nvml.processes = (__typeof__(nvml.processes))dlsym(real, "nvmlDeviceGetComputeRunningProcesses_v3");
	if (!nvml.processes)
		nvml.processes = (__typeof__(nvml.processes))dlsym(real, "nvmlDeviceGetComputeRunningProcesses_v2");
	nvml.processes_v1 = (__typeof__(nvml.processes_v1))dlsym(real, "nvmlDeviceGetComputeRunningProcesses");
	return nvml.init && nvml.by_uuid && (nvml.processes || nvml.processes_v1) && nvml.init() == NVML_SUCCESS;
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count,
				   struct nvml_figure list[NVML_LIST_PROCESSES])
{
	nvmlProcessInfo_t listed[NVML_LIST_PROCESSES];
	nvmlReturn_t result = nvml.processes(device, count, listed);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
		list[i] = (struct nvml_figure){listed[i].pid, listed[i].usedGpuMemory};
	return result;
}

/* For drivers before R470. */
static nvmlReturn_t list_processes_v1(nvmlDevice_t device, unsigned int *count,
				      struct nvml_figure list[NVML_LIST_PROCESSES])
{
	nvmlProcessInfo_v1_t listed[NVML_LIST_PROCESSES];
	nvmlReturn_t result = nvml.processes_v1(device, count, listed);

	for (unsigned int i = 0; result == NVML_SUCCESS && i < *count; i++)
		list[i] = (struct nvml_figure){listed[i].pid, listed[i].usedGpuMemory};
	return result;
}

static unsigned int zero_unknown(struct nvml_figure list[NVML_LIST_PROCESSES], unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		if (list[i].used == (uint64_t)NVML_VALUE_NOT_AVAILABLE)
			list[i].used = 0;
	return count;
}

/* A card, or a MIG instance. */
static bool find_device(const char *prefix, const uint8_t uuid[16], nvmlDevice_t *device)
{
	char text[48];
	int length = snprintf(text, sizeof(text), "%s", prefix);

	for (int i = 0; i < 16; i++)
		length += snprintf(text + length, sizeof(text) - (size_t)length, "%s%02x",
				   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return nvml.by_uuid(text, device) == NVML_SUCCESS;
}

bool nvml_lists_ask(const uint8_t uuid[16], struct nvml_list *figures)
{
	nvmlDevice_t device;

	figures->count = NVML_LIST_PROCESSES;
	figures->are_the_hosts = false;
	if (!find_device("GPU-", uuid, &device) && !find_device("MIG-", uuid, &device))
		return false;
	nvmlReturn_t result = nvml.processes ? list_processes(device, &figures->count, figures->list)
					     : list_processes_v1(device, &figures->count, figures->list);
	if (result != NVML_SUCCESS)
		return false;
	figures->are_the_hosts = !nvml_figures_are_ours(figures->list, figures->count);
	if (figures->are_the_hosts)
		return false;
	figures->count = zero_unknown(figures->list, figures->count);
	return true;
}

bool nvml_lists_are_ready(void)
{
	if (!is_looked_for) {
		is_looked_for = true;
		usable = find_nvml();
		atomic_store(&useless, !usable);
	}
	return usable;
}

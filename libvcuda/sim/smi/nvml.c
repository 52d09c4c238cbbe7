/*
 * nvidia-smi's access to NVML: loading the library, its functions, and reading a card and its processes. The failure
 * messages are those of the real nvidia-smi. smi/nvidia_smi.c and smi/query.c print the values.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "smi/nvidia_smi.h"

struct smi_nvml nvml;

static bool resolve(void *library)
{
	bool complete = true;

#define X(name, parameters) complete &= (*(void **)&nvml.name = dlsym(library, #name)) != NULL;
	SMI_FUNCTIONS(X)
#undef X
	*(void **)&nvml.nvmlErrorString = dlsym(library, "nvmlErrorString");
	return complete && nvml.nvmlErrorString;
}

int smi_nvml_start(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (!library || !resolve(library)) {
		puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA "
		     "Display Driver is properly installed and present in your system.");
		return NVML_ERROR_LIBRARY_NOT_FOUND;
	}
	nvmlReturn_t result = nvml.nvmlInit_v2();
	if (result == NVML_ERROR_DRIVER_NOT_LOADED)
		puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
		     "latest NVIDIA driver is installed and running.");
	else if (result != NVML_SUCCESS)
		printf("Failed to initialize NVML: %s\n", nvml.nvmlErrorString(result));
	return result > 255 ? 255 : (int)result;
}

bool smi_nvml_read_card(nvmlDevice_t device, struct smi_card *card)
{
	nvmlPciInfo_t pci = {.busId = ""};

	static const char *const modes[] = {"Disabled", "Enabled"};
	unsigned mode[2];

	memset(card, 0, sizeof *card);
	card->device = device;
	card->mig[0] = card->mig[1] = "[N/A]";
	card->memory.version = NVML_MEMORY_V2;
	nvmlReturn_t memory = nvml.nvmlDeviceGetMemoryInfo_v2(device, &card->memory);
	card->is_sum_hidden = memory == NVML_ERROR_NO_PERMISSION;
	if (nvml.nvmlDeviceGetIndex(device, &card->index) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetName(device, card->name, sizeof card->name) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetUUID(device, card->uuid, sizeof card->uuid) != NVML_SUCCESS ||
	    (memory != NVML_SUCCESS && !card->is_sum_hidden))
		return false;
	/* A card may not support the other values; they stay zero. */
	nvml.nvmlDeviceGetPciInfo_v3(device, &pci);
	memcpy(card->bus_id, pci.busId, sizeof card->bus_id);
	nvml.nvmlDeviceGetSerial(device, card->serial, sizeof card->serial);
	nvml.nvmlDeviceGetUtilizationRates(device, &card->utilization);
	nvml.nvmlDeviceGetTemperature(device, 0, &card->temperature);
	nvml.nvmlDeviceGetPowerUsage(device, &card->power_mw);
	nvml.nvmlDeviceGetEnforcedPowerLimit(device, &card->power_limit_mw);
	nvml.nvmlDeviceGetCudaComputeCapability(device, &card->compute_major, &card->compute_minor);
	if (nvml.nvmlDeviceGetMigMode(device, &mode[0], &mode[1]) == NVML_SUCCESS)
		for (int i = 0; i < 2; i++)
			card->mig[i] = modes[mode[i] != 0];
	nvml.nvmlDeviceGetGpuInstanceId(device, &card->gi);
	nvml.nvmlDeviceGetComputeInstanceId(device, &card->ci);
	return true;
}

bool smi_nvml_in_mig_mode(const struct smi_card *card)
{
	return strcmp(card->mig[0], "Enabled") == 0;
}

unsigned smi_nvml_instances(const struct smi_card *card, struct smi_card instances[SMI_MAX_INSTANCES])
{
	unsigned count = 0;
	nvmlDevice_t device;

	for (unsigned i = 0; i < SMI_MAX_INSTANCES; i++)
		if (nvml.nvmlDeviceGetMigDeviceHandleByIndex(card->device, i, &device) == NVML_SUCCESS)
			count += smi_nvml_read_card(device, &instances[count]);
	return count;
}

unsigned smi_nvml_processes(nvmlDevice_t device, nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES])
{
	unsigned count = SMI_MAX_PROCESSES;

	return nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) == NVML_SUCCESS ? count : 0;
}

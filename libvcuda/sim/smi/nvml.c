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

	memset(card, 0, sizeof *card);
	card->device = device;
	card->memory.version = NVML_MEMORY_V2;
	if (nvml.nvmlDeviceGetIndex(device, &card->index) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetName(device, card->name, sizeof card->name) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetUUID(device, card->uuid, sizeof card->uuid) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetMemoryInfo_v2(device, &card->memory) != NVML_SUCCESS)
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
	return true;
}

unsigned smi_nvml_processes(nvmlDevice_t device, nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES])
{
	unsigned count = SMI_MAX_PROCESSES;

	return nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) == NVML_SUCCESS ? count : 0;
}

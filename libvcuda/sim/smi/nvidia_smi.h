/*
 * What nvidia-smi's files share. All values come through libnvidia-ml.so.1 by dlopen, so a library in its place
 * (libvcuda) determines what nvidia-smi prints.
 */
#ifndef NVIDIA_SMI_H
#define NVIDIA_SMI_H

#include <stdbool.h>

#include "nvml/types.h"

/* X(name, parameters): the functions that nvidia-smi looks up in the library. */
#define SMI_FUNCTIONS(X) \
	X(nvmlInit_v2, (void)) \
	X(nvmlShutdown, (void)) \
	X(nvmlSystemGetDriverVersion, (char *, unsigned)) \
	X(nvmlSystemGetCudaDriverVersion_v2, (int *)) \
	X(nvmlSystemGetProcessName, (unsigned, char *, unsigned)) \
	X(nvmlDeviceGetCount_v2, (unsigned *)) \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *)) \
	X(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *)) \
	X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, nvmlDevice_t *)) \
	X(nvmlDeviceGetIndex, (nvmlDevice_t, unsigned *)) \
	X(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned)) \
	X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned)) \
	X(nvmlDeviceGetSerial, (nvmlDevice_t, char *, unsigned)) \
	X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *)) \
	X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *)) \
	X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *)) \
	X(nvmlDeviceGetTemperature, (nvmlDevice_t, int, unsigned *)) \
	X(nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned *)) \
	X(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t, unsigned *)) \
	X(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *)) \
	X(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *)) \
	X(nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *)) \
	X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *)) \
	X(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t, unsigned *)) \
	X(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t, unsigned *))

struct smi_nvml {
#define X(name, parameters) nvmlReturn_t(*name) parameters;
	SMI_FUNCTIONS(X)
#undef X
	const char *(*nvmlErrorString)(nvmlReturn_t);
};

#define SMI_MAX_PROCESSES 1024u
#define SMI_MAX_INSTANCES 7u

extern struct smi_nvml nvml;

struct smi_card {
	unsigned index;
	nvmlDevice_t device;
	char name[96], uuid[96], serial[32], bus_id[32];
	nvmlMemory_v2_t memory;
	bool is_sum_hidden; /* this process may not see what all instances of the card use together */
	const char *mig[2]; /* now, and after the next reset */
	unsigned gi, ci;    /* of an instance */
	nvmlUtilization_t utilization;
	unsigned temperature, power_mw, power_limit_mw;
	int compute_major, compute_minor;
};

/* Loads and initializes NVML. On failure it prints a line and returns the exit status. */
int smi_nvml_start(void);
bool smi_nvml_read_card(nvmlDevice_t device, struct smi_card *card);
bool smi_nvml_in_mig_mode(const struct smi_card *card);
/* Reads the instances of a card and returns their number. */
unsigned smi_nvml_instances(const struct smi_card *card, struct smi_card instances[SMI_MAX_INSTANCES]);
/* Stores the processes on a card and returns their number. */
unsigned smi_nvml_processes(nvmlDevice_t device, nvmlProcessInfo_v2_t list[SMI_MAX_PROCESSES]);
/* --query-gpu=... with --format=csv[,noheader][,nounits]; returns the exit status. */
int smi_query_cards(char *fields, const char *format, const struct smi_card *cards, unsigned count);
/* --query-compute-apps=... in the same formats; returns the exit status. */
int smi_query_processes(char *fields, const char *format, const struct smi_card *cards, unsigned count);

#endif

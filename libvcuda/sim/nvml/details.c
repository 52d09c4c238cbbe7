/*
 * NVML values that monitoring programs ask for and that are fixed on these cards: idle encoders, modes that are off,
 * link speeds, performance states. Values that change with the load are in nvml/activity.c, errors in nvml/health.c.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nvml/nvml_sim.h"
#include "state/trampoline.h"
#include "state/version.h"

#define SAMPLING_PERIOD_US 167000u
#define PERFORMANCE_STATES 32u
#define NO_PERFORMANCE_STATE 32u

SIM_TRAMPOLINE(nvmlDeviceGetJpgUtilization, nvmlDeviceGetEncoderUtilization)
SIM_TRAMPOLINE(nvmlDeviceGetOfaUtilization, nvmlDeviceGetEncoderUtilization)

static nvmlReturn_t give_number(nvmlDevice_t device, unsigned *out, unsigned value)
{
	TRY(sim_nvml_init_check(device, out));
	*out = value;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	return give_number(device, is_mig, 0);
}

/* MIG is off: there are no such devices. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
	(void)index;
	TRY(sim_nvml_init_check(device, mig));
	return device->compute_major < 8 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
	return give_number(device, mode, 0);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, unsigned *source)
{
	return give_number(device, source, 0);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetIrqNum(nvmlDevice_t device, unsigned *number)
{
	return give_number(device, number, device ? 64 + (unsigned)sim_nvml_init_index(device) : 0);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAdaptiveClockInfoStatus(nvmlDevice_t device, unsigned *status)
{
	return give_number(device, status, 0);
}

static unsigned pcie_speed(nvmlDevice_t device)
{
	unsigned generation = 0;

	nvmlDeviceGetMaxPcieLinkGeneration(device, &generation);
	return generation >= 3 ? 1000u << generation : 5000; /* 8,000, 16,000 and 32,000 MT/s */
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *speed)
{
	TRY(sim_nvml_init_check(device, speed));
	*speed = pcie_speed(device);
	return NVML_SUCCESS;
}

/* As an enumeration, whose numbers are those of the generations. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *speed)
{
	return nvmlDeviceGetMaxPcieLinkGeneration(device, speed);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEncoderCapacity(nvmlDevice_t device, int codec, unsigned *percent)
{
	nvmlReturn_t result = give_number(device, percent, 100);

	return result == NVML_SUCCESS && (codec < 0 || codec > 2) ? NVML_ERROR_INVALID_ARGUMENT : result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *fps, unsigned *latency)
{
	TRY(give_number(device, sessions, 0));
	REJECT(!fps || !latency);
	*fps = *latency = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, unsigned stats[3])
{
	TRY(sim_nvml_init_check(device, stats));
	memset(stats, 0, 3 * sizeof *stats);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, void *sessions)
{
	(void)sessions;
	return give_number(device, count, 0);
}

SIM_TRAMPOLINE(nvmlDeviceGetFBCSessions, nvmlDeviceGetEncoderSessions)

/* Performance was never limited. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, int policy, unsigned long long times[2])
{
	struct timespec now;

	TRY(sim_nvml_init_check(device, times));
	REJECT(policy < 0 || policy > 11);
	clock_gettime(CLOCK_REALTIME, &now);
	times[0] = (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
	times[1] = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned *states, unsigned bytes)
{
	TRY(sim_nvml_init_check(device, states));
	if (bytes < sizeof *states)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < bytes / sizeof *states; i++)
		states[i] = i ? NO_PERFORMANCE_STATE : 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, int type, unsigned state, unsigned *least,
                                                         unsigned *most)
{
	if (!least || state)
		return state < PERFORMANCE_STATES ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;

	TRY(nvmlDeviceGetClockInfo(device, type, most));
	*least = type == NVML_CLOCK_MEM ? *most : 210;
	return NVML_SUCCESS;
}

typedef struct {
	unsigned flags;
	struct { unsigned is_present, percentage, increase, decrease; } utilization[8];
} nvmlGpuDynamicPstatesInfo_t;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
	nvmlUtilization_t utilization;

	TRY(sim_nvml_init_check(device, info));
	TRY(nvmlDeviceGetUtilizationRates(device, &utilization));
	memset(info, 0, sizeof *info);
	info->utilization[0].is_present = info->utilization[1].is_present = 1; /* the GPU and its memory */
	info->utilization[0].percentage = utilization.gpu;
	info->utilization[1].percentage = utilization.memory;
	return NVML_SUCCESS;
}

typedef struct {
	unsigned count;
	struct { int controller, least, most, current, target; } sensors[3];
} nvmlGpuThermalSettings_t;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned index, nvmlGpuThermalSettings_t *out)
{
	unsigned temperature;

	TRY(sim_nvml_init_check(device, out));
	TRY(nvmlDeviceGetTemperature(device, 0, &temperature));
	REJECT(index && index != 15); /* 15: all of them */
	memset(out, 0, sizeof *out);
	out->count = 1;
	out->sensors[0].controller = out->sensors[0].target = 1; /* inside the GPU */
	out->sensors[0].most = 127;
	out->sensors[0].current = (int)temperature;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
	TRY(sim_nvml_init_check(device, version));
	return sim_nvml_init_text(version, 64, sim_version_driver);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled, unsigned *by_default)
{
	TRY(give_number(device, enabled, 1));
	REJECT(!by_default);
	*by_default = 1;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *version, unsigned length)
{
	TRY(sim_nvml_init_check(device, version));
	return sim_nvml_init_text(version, length, "G000.0000.00.00");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, int part, char *version, unsigned length)
{
	TRY(sim_nvml_init_check(device, version));
	return part < 0 || part > 3 ? NVML_ERROR_INVALID_ARGUMENT : sim_nvml_init_text(version, length, "2.0");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned *checksum)
{
	return give_number(device, checksum, 0);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
	return sim_nvml_init_check(device, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, int api, int *restricted)
{
	TRY(sim_nvml_init_check(device, restricted));
	REJECT(api < 0 || api > 1);
	*restricted = 1; /* to root */
	return NVML_SUCCESS;
}

typedef struct { unsigned version, is_supported; } nvmlGpmSupport_t;

/* Counters of the activity inside the multiprocessors are not supported. */
SIM_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	TRY(sim_nvml_init_check(device, support));
	if (support->version != 1 && support->version != (sizeof *support | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->is_supported = 0;
	return NVML_SUCCESS;
}

/* For the node: no units (racks of old systems), no excluded cards, confidential computing off. */
static nvmlReturn_t none(unsigned *count)
{
	TRY(sim_nvml_init_ready());
	REJECT(!count);
	*count = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
	return none(count);
}

SIM_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
	return none(count);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, void *entries)
{
	(void)entries;
	return none(count);
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetConfComputeState(unsigned state[3])
{
	TRY(none(state));
	memset(state, 0, 3 * sizeof *state);
	return NVML_SUCCESS;
}

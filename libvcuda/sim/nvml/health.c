/*
 * NVML values about clocks and their limits, power and temperature limits, PCIe and NVLink counters, and firmware
 * versions. Memory errors are in nvml/memory_errors.c; the present load is in nvml/activity.c.
 */
#include "nvml/nvml_sim.h"
#include "state/clock.h"
#include "state/trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons)
SIM_TRAMPOLINE(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons)

/* An idle GPU does not run at full clocks; no other reason ever applies. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	nvmlUtilization_t utilization;

	TRY(sim_nvml_init_check(device, reasons));
	TRY(nvmlDeviceGetUtilizationRates(device, &utilization));
	*reasons = utilization.gpu ? 0 : 1;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	TRY(sim_nvml_init_check(device, reasons));
	*reasons = 0x1ff;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
	TRY(sim_nvml_init_check(device, count));
	unsigned room = *count;
	*count = 1;
	if (!clocks || room < 1)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	clocks[0] = device->memory_clock_mhz;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count,
                                                             unsigned *clocks)
{
	TRY(sim_nvml_init_check(device, count));
	if (memory != device->memory_clock_mhz)
		return NVML_ERROR_NOT_FOUND;
	unsigned room = *count;
	*count = 1;
	if (!clocks || room < 1)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	clocks[0] = device->clock_mhz;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
	TRY(sim_nvml_init_check(device, least));
	REJECT(!most);
	*least = device->power_limit_mw / 2;
	*most = device->power_limit_mw;
	return NVML_SUCCESS;
}

/* type: 0 shutdown, 1 slowdown, 2 limit of the memory, 3 limit of the GPU */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int type, unsigned *temperature)
{
	static const unsigned thresholds[] = {92, 89, 95, 85};

	TRY(sim_nvml_init_check(device, temperature));
	REJECT(type < 0 || type >= (int)(sizeof thresholds / sizeof *thresholds));
	*temperature = thresholds[type];
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kib)
{
	TRY(sim_nvml_init_check(device, kib));
	REJECT(counter < 0 || counter > 1);
	*kib = 0;
	return NVML_SUCCESS;
}

/* id: 0 current, 1 application's target, 2 its default, 3 customer's maximum */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, int type, int id, unsigned *mhz)
{
	REJECT(id < 0 || id > 3);
	return nvmlDeviceGetClockInfo(device, type, mhz);
}

SIM_TRAMPOLINE(nvmlDeviceGetApplicationsClock, nvmlDeviceGetClockInfo)
SIM_TRAMPOLINE(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetClockInfo)
SIM_TRAMPOLINE(nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetClockInfo)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
	TRY(sim_nvml_init_check(device, version));
	return sim_nvml_init_text(version, length, "90.04.96.00.01");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned length)
{
	TRY(sim_nvml_init_check(device, number));
	return sim_nvml_init_text(number, length, "900-00000-0000-000");
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *has)
{
	TRY(sim_nvml_init_check(device, has));
	if (link >= device->link_count || capability < 0 || capability > 5)
		return device->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*has = capability == 0 || capability == 2; /* peer-to-peer, with atomics; no system memory */
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkUtilizationCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                                              unsigned long long *received, unsigned long long *sent)
{
	TRY(sim_nvml_init_check(device, received));
	if (!sent || link >= device->link_count || counter > 1)
		return device->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*received = *sent = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, int counter,
                                                        unsigned long long *count)
{
	TRY(sim_nvml_init_check(device, count));
	if (link >= device->link_count || counter < 0 || counter > 4)
		return device->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	return NVML_SUCCESS;
}

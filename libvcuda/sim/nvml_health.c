/* Errors, clocks' limits, PCIe, and the field values that ask for the same by number. */
#include <string.h>

#include "nvml_sim.h"
#include "sim_clock.h"
#include "trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons)
SIM_TRAMPOLINE(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons)

/* All the models here have ECC memory, and it is on. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
	nvmlReturn_t result = sim_nvml_check(device, current);

	if (result != NVML_SUCCESS)
		return result;
	if (!pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = 1;
	return NVML_SUCCESS;
}

/* type: 0 corrected, 1 uncorrected; counter: 0 since boot, 1 ever */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
	struct sim_board board;
	nvmlReturn_t result = sim_nvml_board(device, count, &board);

	if (result != NVML_SUCCESS)
		return result;
	if (type < 0 || type > 1 || counter < 0 || counter > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = board.ecc[counter * 2 + type];
	return NVML_SUCCESS;
}

/* By place: all of them are in the device's memory, whose number is 2. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int type, int counter, int location,
                                                        unsigned long long *count)
{
	nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, type, counter, count);

	if (result != NVML_SUCCESS)
		return result;
	if (location < 0 || location > 8)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (location != 2)
		*count = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                                  unsigned *pending, unsigned *failure)
{
	nvmlReturn_t result = sim_nvml_check(device, corrected);

	if (result != NVML_SUCCESS)
		return result;
	if (!uncorrected || !pending || !failure)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (device->compute_major < 8)
		return NVML_ERROR_NOT_SUPPORTED;
	*corrected = *uncorrected = *pending = *failure = 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned *count,
                                                  unsigned long long *addresses)
{
	nvmlReturn_t result = sim_nvml_check(device, count);

	(void)cause;
	(void)addresses;
	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

/* GPU idle is a reason not to run at full clocks, and nothing else is wrong. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	nvmlUtilization_t utilization;
	nvmlReturn_t result = sim_nvml_check(device, reasons);

	if (result == NVML_SUCCESS)
		result = nvmlDeviceGetUtilizationRates(device, &utilization);
	if (result == NVML_SUCCESS)
		*reasons = utilization.gpu ? 0 : 1;
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	nvmlReturn_t result = sim_nvml_check(device, reasons);

	if (result == NVML_SUCCESS)
		*reasons = 0x1ff;
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
	nvmlReturn_t result = sim_nvml_check(device, count);

	if (result != NVML_SUCCESS)
		return result;
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
	nvmlReturn_t result = sim_nvml_check(device, count);

	if (result != NVML_SUCCESS)
		return result;
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
	nvmlReturn_t result = sim_nvml_check(device, least);

	if (result != NVML_SUCCESS)
		return result;
	if (!most)
		return NVML_ERROR_INVALID_ARGUMENT;
	*least = device->power_limit_mw / 2;
	*most = device->power_limit_mw;
	return NVML_SUCCESS;
}

/* type: 0 shutdown, 1 slowdown, 2 memory's limit, 3 the GPU's limit */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, int type, unsigned *temperature)
{
	static const unsigned thresholds[] = {92, 89, 95, 85};
	nvmlReturn_t result = sim_nvml_check(device, temperature);

	if (result != NVML_SUCCESS)
		return result;
	if (type < 0 || type >= (int)(sizeof thresholds / sizeof *thresholds))
		return NVML_ERROR_INVALID_ARGUMENT;
	*temperature = thresholds[type];
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kib)
{
	nvmlReturn_t result = sim_nvml_check(device, kib);

	if (result == NVML_SUCCESS && (counter < 0 || counter > 1))
		result = NVML_ERROR_INVALID_ARGUMENT;
	if (result == NVML_SUCCESS)
		*kib = 0;
	return result;
}

/* id: 0 current, 1 the application's target, 2 its default, 3 the customer's maximum */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, int type, int id, unsigned *mhz)
{
	if (id < 0 || id > 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	return nvmlDeviceGetClockInfo(device, type, mhz);
}

SIM_TRAMPOLINE(nvmlDeviceGetApplicationsClock, nvmlDeviceGetClockInfo)
SIM_TRAMPOLINE(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetClockInfo)
SIM_TRAMPOLINE(nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetClockInfo)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
	nvmlReturn_t result = sim_nvml_check(device, version);

	return result == NVML_SUCCESS ? sim_nvml_text(version, length, "90.04.96.00.01") : result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *number, unsigned length)
{
	nvmlReturn_t result = sim_nvml_check(device, number);

	return result == NVML_SUCCESS ? sim_nvml_text(number, length, "900-00000-0000-000") : result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *has)
{
	nvmlReturn_t result = sim_nvml_check(device, has);

	if (result != NVML_SUCCESS)
		return result;
	if (link >= device->link_count || capability < 0 || capability > 5)
		return device->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*has = capability == 0 || capability == 2; /* peer-to-peer, with atomics; no system memory */
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, int counter,
                                                        unsigned long long *count)
{
	nvmlReturn_t result = sim_nvml_check(device, count);

	if (result != NVML_SUCCESS)
		return result;
	if (link >= device->link_count || counter < 0 || counter > 4)
		return device->link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*count = 0;
	return NVML_SUCCESS;
}

typedef struct {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	union { double real; unsigned number; unsigned long long large; } value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

enum { VALUE_UNSIGNED = 1, VALUE_LARGE = 3 };

/* What DCGM-like tools ask for by number. */
static nvmlReturn_t field(nvmlDevice_t device, const struct sim_board *board, nvmlFieldValue_t *out)
{
	out->valueType = VALUE_UNSIGNED;
	out->value.large = 0;
	switch (out->fieldId) {
	case 1: case 2: out->value.number = 1; return NVML_SUCCESS; /* ECC mode, current and pending */
	case 3: case 4: case 5: case 6:                             /* its totals */
		out->valueType = VALUE_LARGE;
		out->value.large = board->ecc[out->fieldId - 3];
		return NVML_SUCCESS;
	case 83:                                                    /* total energy */
		out->valueType = VALUE_LARGE;
		return nvmlDeviceGetTotalEnergyConsumption(device, &out->value.large);
	case 91:                                                    /* NVLinks */
		out->value.number = device->link_count;
		return NVML_SUCCESS;
	case 185: case 186:                                         /* power, averaged and at once */
		return nvmlDeviceGetPowerUsage(device, &out->value.number);
	default: return NVML_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct sim_board board;
	nvmlReturn_t result = sim_nvml_board(device, values, &board);

	if (result != NVML_SUCCESS)
		return result;
	if (count <= 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++) {
		values[i].timestamp = (long long)sim_realtime_us();
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = (int)field(device, &board, &values[i]);
	}
	return NVML_SUCCESS;
}

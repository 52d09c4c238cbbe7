/*
 * Field values, which tools request by number, many at once.
 */
#include <string.h>
#include <time.h>

#include "nvml/nvml_sim.h"

typedef struct {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	union {
		double real;
		unsigned number;
		unsigned long long large;
	} value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

enum { VALUE_UNSIGNED = 1, VALUE_LARGE = 3 };

/* Fields by number. */
enum { MEMORY_TEMPERATURE = 82, LINK_COUNT = 91, LINK_BYTES_FIRST = 138, LINK_BYTES_LAST = 141 };

static nvmlReturn_t small(nvmlFieldValue_t *out, unsigned value)
{
	out->valueType = VALUE_UNSIGNED;
	out->value.number = value;
	return NVML_SUCCESS;
}

static nvmlReturn_t memory_temperature(nvmlDevice_t device, nvmlFieldValue_t *out)
{
	unsigned temperature;

	TRY(device->compute_major < 8 ? NVML_ERROR_NOT_SUPPORTED : nvmlDeviceGetTemperature(device, 0, &temperature));
	return small(out, temperature);
}

/* Nothing goes over the links; a field is of all links or, by scopeId, of one. */
static nvmlReturn_t field(nvmlDevice_t device, nvmlFieldValue_t *out)
{
	bool is_bytes = out->fieldId >= LINK_BYTES_FIRST && out->fieldId <= LINK_BYTES_LAST;

	if (out->fieldId == MEMORY_TEMPERATURE)
		return memory_temperature(device, out);
	if (!device->link_count || (!is_bytes && out->fieldId != LINK_COUNT))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!is_bytes)
		return small(out, device->link_count);
	out->valueType = VALUE_LARGE;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct timespec now;

	TRY(sim_nvml_init_check(device, values));
	REJECT(count <= 0);
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].value.large = 0;
		values[i].nvmlReturn = (int)field(device, &values[i]);
	}
	return NVML_SUCCESS;
}

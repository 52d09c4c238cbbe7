/*
 * Field values, which tools like DCGM request by number, many at once. A value that also has a call of its own is the
 * same here: it comes from that call or from the same part of the state.
 */
#include <string.h>
#include <time.h>

#include "nvml/nvml_sim.h"

typedef struct {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	int valueType, nvmlReturn;
	union { double real; unsigned number; unsigned long long large; } value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

enum { VALUE_UNSIGNED = 1, VALUE_LARGE = 3 };

enum what {
	UNKNOWN,
	ONE,              /* the ECC mode */
	ZERO,             /* a counter of something that does not happen here */
	ECC,              /* since boot and ever, of the card or of its memory: the index into board.ecc */
	RETIRED,          /* retired pages, on cards that retire pages */
	REMAPPED,         /* remapped rows, on cards that remap rows */
	LINK_ZERO,        /* a counter of one link or of all links */
	LINK_SPEED,
	LINK_COUNT,
	LINK_SWITCH,      /* number of links that end at a switch */
	LINK_STATE,
	LINK_VERSION,
	LINK_REMOTE,
	ENERGY,
	POWER,
	POWER_LEAST,
	POWER_LIMIT,
	MEMORY_TEMPERATURE,
};

/* Fields by number. For kinds with several values, `index` selects one. */
static const struct range {
	unsigned first, last;
	enum what what;
	unsigned index;
} ranges[] = {
	{1, 2, ONE, 0},
	{3, 3, ECC, 0}, {4, 4, ECC, 1}, {5, 5, ECC, 2}, {6, 6, ECC, 3},
	{7, 10, ZERO, 0}, {11, 11, ECC, 0}, {12, 12, ECC, 1}, {13, 21, ZERO, 0}, {22, 22, ECC, 2}, {23, 23, ECC, 3},
	{24, 28, ZERO, 0},
	{29, 29, RETIRED, 0}, {30, 30, RETIRED, 1}, {31, 31, RETIRED, 2}, {92, 93, RETIRED, 2},
	{32, 59, LINK_ZERO, 0}, {96, 119, LINK_ZERO, 0}, {138, 141, LINK_ZERO, 0}, {148, 163, LINK_ZERO, 0},
	{74, 81, ZERO, 0},
	{82, 82, MEMORY_TEMPERATURE, 0},
	{83, 83, ENERGY, 0}, {191, 191, ENERGY, 0},
	{84, 90, LINK_SPEED, 0}, {132, 137, LINK_SPEED, 0}, {164, 164, LINK_SPEED, 0},
	{91, 91, LINK_COUNT, 0},
	{94, 95, ZERO, 0}, {169, 170, ZERO, 0}, {173, 184, ZERO, 0}, {197, 198, ZERO, 0},
	{142, 142, REMAPPED, 0}, {143, 143, REMAPPED, 1}, {144, 144, REMAPPED, 2}, {145, 145, REMAPPED, 3},
	{146, 146, LINK_REMOTE, 0}, {147, 147, LINK_SWITCH, 0},
	{165, 165, LINK_STATE, 0}, {166, 166, LINK_VERSION, 0}, {167, 167, LINK_ZERO, 0},
	{185, 186, POWER, 0}, {187, 187, POWER_LEAST, 0}, {188, 190, POWER_LIMIT, 0}, {192, 192, POWER_LIMIT, 0},
};

static const struct range *find_range(unsigned field)
{
	for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
		if (ranges[i].first <= field && field <= ranges[i].last)
			return &ranges[i];
	return NULL;
}

static nvmlReturn_t small(nvmlFieldValue_t *out, unsigned value)
{
	out->valueType = VALUE_UNSIGNED;
	out->value.number = value;
	return NVML_SUCCESS;
}

static nvmlReturn_t large(nvmlFieldValue_t *out, unsigned long long value)
{
	out->valueType = VALUE_LARGE;
	out->value.large = value;
	return NVML_SUCCESS;
}

static unsigned count_switched(nvmlDevice_t device)
{
	unsigned count = 0;

	for (unsigned i = 0; i < device->link_count; i++)
		count += device->links[i] == SIM_LINK_SWITCH;
	return count;
}

static unsigned link_speed(nvmlDevice_t device)
{
	return device->compute_major >= 9 ? 26562 : device->compute_major == 8 ? 25000 : 25781; /* MB/s in each direction */
}

/* scopeId is the link, unless the field itself names one. */
static nvmlReturn_t link_field(nvmlDevice_t device, enum what what, nvmlFieldValue_t *out)
{
	unsigned active;

	if (!device->link_count)
		return NVML_ERROR_NOT_SUPPORTED;
	switch (what) {
	case LINK_ZERO: return large(out, 0);
	case LINK_SPEED: return small(out, link_speed(device));
	case LINK_COUNT: return small(out, device->link_count);
	case LINK_SWITCH: return small(out, count_switched(device));
	case LINK_REMOTE:
	case LINK_STATE:
		out->valueType = VALUE_UNSIGNED;
		REJECT(nvmlDeviceGetNvLinkState(device, out->scopeId, &active) != NVML_SUCCESS);
		return small(out, what == LINK_STATE ? active : out->scopeId);
	default:
		out->valueType = VALUE_UNSIGNED;
		return nvmlDeviceGetNvLinkVersion(device, out->scopeId, &out->value.number);
	}
}

static nvmlReturn_t power_field(nvmlDevice_t device, enum what what, nvmlFieldValue_t *out)
{
	unsigned long long energy;
	unsigned power;
	nvmlReturn_t result;

	switch (what) {
	case ENERGY:
		result = nvmlDeviceGetTotalEnergyConsumption(device, &energy);
		return result == NVML_SUCCESS ? large(out, energy) : result;
	case POWER_LEAST: return small(out, device->power_limit_mw / 2);
	case POWER_LIMIT: return small(out, device->power_limit_mw);
	default:
		result = nvmlDeviceGetPowerUsage(device, &power);
		return result == NVML_SUCCESS ? small(out, power) : result;
	}
}

static nvmlReturn_t memory_temperature(nvmlDevice_t device, nvmlFieldValue_t *out)
{
	unsigned temperature;

	TRY(device->compute_major < 8 ? NVML_ERROR_NOT_SUPPORTED
	                                                : nvmlDeviceGetTemperature(device, 0, &temperature));
	return small(out, temperature);
}

static nvmlReturn_t field(nvmlDevice_t device, const struct sim_board *board, nvmlFieldValue_t *out)
{
	const struct range *range = find_range(out->fieldId);
	bool remaps = device->compute_major >= 8;

	switch (range ? range->what : UNKNOWN) {
	case ONE: return small(out, 1);
	case ZERO: return large(out, 0);
	case ECC: return large(out, board->ecc[range->index]);
	case RETIRED: return remaps ? NVML_ERROR_NOT_SUPPORTED : small(out, board->retired[range->index]);
	case REMAPPED: return remaps ? small(out, board->remapped[range->index]) : NVML_ERROR_NOT_SUPPORTED;
	case LINK_COUNT: case LINK_ZERO: case LINK_SPEED: case LINK_SWITCH: case LINK_STATE: case LINK_VERSION:
	case LINK_REMOTE: return link_field(device, range->what, out);
	case ENERGY: case POWER: case POWER_LEAST: case POWER_LIMIT: return power_field(device, range->what, out);
	case MEMORY_TEMPERATURE: return memory_temperature(device, out);
	default: return NVML_ERROR_NOT_SUPPORTED;
	}
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct sim_board board;
	struct timespec now;

	TRY(sim_nvml_activity_board(device, values, &board));
	REJECT(count <= 0);
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].value.large = 0;
		values[i].nvmlReturn = (int)field(device, &board, &values[i]);
	}
	return NVML_SUCCESS;
}

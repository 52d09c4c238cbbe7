/*
 * Errors of the cards' memory, remapped rows and retired pages, which health checks read. simctl.py sets them. Events
 * that report them are in nvml/event.c.
 */
#include <string.h>

#include "nvml/nvml_sim.h"

/* All models of the simulator have ECC memory, and ECC is on. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
	TRY(sim_nvml_init_check(device, current));
	REJECT(!pending);
	*current = *pending = 1;
	return NVML_SUCCESS;
}

/* type: 0 corrected, 1 uncorrected; counter: 0 since boot, 1 ever */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
	struct sim_board board;

	TRY(sim_nvml_activity_board(device, count, &board));
	REJECT(type < 0 || type > 1 || counter < 0 || counter > 1);
	*count = board.ecc[counter * 2 + type];
	return NVML_SUCCESS;
}

/* By location: all errors are in the device's memory, whose number is 2. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int type, int counter, int location,
                                                        unsigned long long *count)
{
	TRY(nvmlDeviceGetTotalEccErrors(device, type, counter, count));
	REJECT(location < 0 || location > 8);
	if (location != 2)
		*count = 0;
	return NVML_SUCCESS;
}

typedef struct { unsigned long long l1, l2, device_memory, registers; } nvmlEccErrorCounts_t;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, int type, int counter,
                                                       nvmlEccErrorCounts_t *counts)
{
	unsigned long long count;

	TRY(counts ? nvmlDeviceGetTotalEccErrors(device, type, counter, &count) : NVML_ERROR_INVALID_ARGUMENT);
	*counts = (nvmlEccErrorCounts_t){.device_memory = count};
	return NVML_SUCCESS;
}

typedef struct {
	unsigned version;
	unsigned long long counts[11]; /* none of the simulated errors are in SRAM */
	unsigned threshold_exceeded;
} nvmlEccSramErrorStatus_t;

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
	TRY(sim_nvml_init_check(device, status));
	if (status->version != (sizeof *status | 1u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (device->compute_major < 8)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(status->counts, 0, sizeof status->counts);
	status->threshold_exceeded = 0;
	return NVML_SUCCESS;
}

/* Ampere and later remap rows; earlier cards retire pages. */
static nvmlReturn_t remapper(nvmlDevice_t device, const void *out, struct sim_board *board)
{
	nvmlReturn_t result = sim_nvml_activity_board(device, out, board);

	return result == NVML_SUCCESS && device->compute_major < 8 ? NVML_ERROR_NOT_SUPPORTED : result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                                  unsigned *pending, unsigned *failure)
{
	struct sim_board board;

	TRY(remapper(device, corrected, &board));
	REJECT(!uncorrected || !pending || !failure);
	*corrected = board.remapped[0];
	*uncorrected = board.remapped[1];
	*pending = board.remapped[2] != 0;
	*failure = board.remapped[3] != 0;
	return NVML_SUCCESS;
}

#define BANKS 640u

/* Banks by the number of spare rows left: all, most, some, few, none. Each remapped row is in another bank. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, unsigned histogram[5])
{
	struct sim_board board;

	TRY(remapper(device, histogram, &board));
	uint64_t rows = (uint64_t)board.remapped[0] + board.remapped[1];
	memset(histogram, 0, 5 * sizeof *histogram);
	histogram[4] = board.remapped[3] != 0;
	histogram[1] = rows < BANKS - histogram[4] ? (unsigned)rows : BANKS - histogram[4];
	histogram[0] = BANKS - histogram[1] - histogram[4];
	return NVML_SUCCESS;
}

static nvmlReturn_t retired(nvmlDevice_t device, const void *out, struct sim_board *board)
{
	nvmlReturn_t result = sim_nvml_activity_board(device, out, board);

	return result == NVML_SUCCESS && device->compute_major >= 8 ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* Invented addresses, and times of 0, because the state has none. cause: 0 single-bit, 1 double-bit errors */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, int cause, unsigned *count,
                                                     unsigned long long *addresses, unsigned long long *times)
{
	struct sim_board board;

	TRY(retired(device, count, &board));
	REJECT(cause < 0 || cause > 1);
	unsigned room = addresses ? *count : 0;
	*count = board.retired[cause] > 64 ? 64 : board.retired[cause];
	if (*count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *count; i++) {
		addresses[i] = (unsigned long long)(i + 1 + 64 * (unsigned)cause) << 16;
		if (times)
			times[i] = 0;
	}
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, int cause, unsigned *count,
                                                  unsigned long long *addresses)
{
	return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
	struct sim_board board;

	TRY(retired(device, pending, &board));
	*pending = board.retired[2] != 0;
	return NVML_SUCCESS;
}

/*
 * Errors of the cards' memory, remapped rows and retired pages, which health checks read. simctl.py sets them. Events
 * that report them are in nvml/event.c.
 */
#include <string.h>

#include "nvml/nvml_sim.h"

/* type: 0 corrected, 1 uncorrected; counter: 0 since boot, 1 ever */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
						    unsigned long long *count)
{
	struct sim_board board;

	TRY(sim_nvml_activity_board(device, count, &board));
	REJECT(type < 0 || type > 1 || counter < 0 || counter > 1);
	*count = board.ecc[counter * 2 + type];
	return NVML_SUCCESS;
}

typedef struct {
	unsigned long long l1, l2, device_memory, registers;
} nvmlEccErrorCounts_t;

typedef struct {
	unsigned version;
	unsigned long long counts[11]; /* none of the simulated errors are in SRAM */
	unsigned threshold_exceeded;
} nvmlEccSramErrorStatus_t;

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

static nvmlReturn_t retired(nvmlDevice_t device, const void *out, struct sim_board *board)
{
	nvmlReturn_t result = sim_nvml_activity_board(device, out, board);

	return result == NVML_SUCCESS && device->compute_major >= 8 ? NVML_ERROR_NOT_SUPPORTED : result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
	struct sim_board board;

	TRY(retired(device, pending, &board));
	*pending = board.retired[2] != 0;
	return NVML_SUCCESS;
}

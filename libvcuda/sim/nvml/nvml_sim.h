/*
 * What the files of nvml/ share: the checks that begin every call, the card of a handle, and calls that other files
 * use. The state of the cards comes from state/state.h.
 */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#include <stdbool.h>

#include "nvml/types.h"
#include "state/state.h"

/* Leaves the calling function with the call's result unless it is NVML_SUCCESS. Not under a lock. */
#define TRY(call) \
	do { \
		nvmlReturn_t tried = (call); \
		if (tried != NVML_SUCCESS) \
			return tried; \
	} while (0)

/* Leaves it with NVML_ERROR_INVALID_ARGUMENT if the condition holds. */
#define REJECT(condition) TRY((condition) ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS)

/* Checks that NVML is initialized and the driver is loaded. */
nvmlReturn_t sim_nvml_init_ready(void);
nvmlReturn_t sim_nvml_init_absent(void);
/* Also checks that the handle belongs to a card that this process may see and that is not lost; to no instance. */
nvmlReturn_t sim_nvml_init_check(nvmlDevice_t device, const void *out);
/* The same, but instances have this value, too. */
nvmlReturn_t sim_nvml_init_check_any(nvmlDevice_t device, const void *out);
/* The same for what a card in MIG mode shows of all its instances together, where the process may see it. */
nvmlReturn_t sim_nvml_init_check_sum(nvmlDevice_t device, const void *out);
/* The card of an instance; another card is its own. */
nvmlDevice_t sim_nvml_init_whole(nvmlDevice_t device);
nvmlReturn_t sim_nvml_init_return(enum sim_status status);
nvmlReturn_t sim_nvml_init_text(char *out, unsigned length, const char *text);

/* Checks as above, then copies what changes about the card. */
nvmlReturn_t sim_nvml_activity_board(nvmlDevice_t device, const void *out, struct sim_board *board);

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *temperature);

/* The pid by which a process of struct sim_process is reported to the caller. */
unsigned sim_nvml_process_pid(pid_t pid, bool known);

/* Whether the card fell off the bus and has not come back. */
bool sim_nvml_init_lost(unsigned card);

/* The position among the visible cards, or of an instance among its card's; -1: it is not visible. */
int sim_nvml_init_index(nvmlDevice_t device);
/* The card's position in the state. */
unsigned sim_nvml_init_card(nvmlDevice_t device);

/* "0000:18:00.0" with `digits` digits of domain. */
void sim_nvml_device_bus_id(char *out, size_t size, int digits, unsigned domain, unsigned bus, unsigned device);

#endif

#ifndef NVML_SIM_H
#define NVML_SIM_H

#include <stdbool.h>

#include "nvml/types.h"
#include "state/state.h"

/* Initialized, the driver is loaded, and the handle is one of a card that this process may see and that answers. */
nvmlReturn_t sim_nvml_ready(void);
nvmlReturn_t sim_nvml_check(nvmlDevice_t device, const void *out);
nvmlReturn_t sim_nvml_return(enum sim_status status);
nvmlReturn_t sim_nvml_text(char *out, unsigned length, const char *text);

/* Checked as above, and what changes about the card. */
nvmlReturn_t sim_nvml_board(nvmlDevice_t device, const void *out, struct sim_board *board);

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatt);
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoule);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *temperature);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz);

/* Did the card fall off the bus, and not come back yet? */
bool sim_nvml_lost(unsigned card);

/* Position among the visible cards, and in the state. */
int sim_nvml_index(nvmlDevice_t device);
unsigned sim_nvml_card(nvmlDevice_t device);

/* "0000:18:00.0" with `digits` digits of domain. */
void sim_nvml_bus_id(char *out, size_t size, int digits, unsigned domain, unsigned bus, unsigned device);

#endif

/*
 * NVML values of one card that do not change with its load: names, PCI addresses, clocks, modes, and its memory as the
 * ledger has it. Utilization and power are in nvml/activity.c, connections between cards in nvml/topology.c, lists of
 * processes in nvml/process.c.
 */
#include <stdio.h>
#include <string.h>

#include "nvml/nvml_sim.h"
#include "state/trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2)

#define PERFORMANCE_STATE 0

typedef nvmlReturn_t (*check_t)(nvmlDevice_t, const void *);

static nvmlReturn_t number(check_t check, nvmlDevice_t device, unsigned *out,
			   unsigned (*value)(const struct sim_card *))
{
	TRY(check(device, out));
	*out = value(device);
	return NVML_SUCCESS;
}

/* NUMBER(name, expression over `card`) defines one of the many calls that return one unsigned int; ANY: of instances, too. */
#define NUMBER(name, expression) NUMBER_OF(name, sim_nvml_init_check, expression)
#define ANY(name, expression) NUMBER_OF(name, sim_nvml_init_check_any, expression)
#define NUMBER_OF(name, check, expression) \
	static unsigned value_of_##name(const struct sim_card *card) \
	{ \
		(void)card; \
		return expression; \
	} \
	SIM_EXPORT nvmlReturn_t nvmlDeviceGet##name(nvmlDevice_t device, unsigned *out) \
	{ \
		return number(check, device, out, value_of_##name); \
	}

static unsigned architecture(const struct sim_card *card)
{
	switch (card->compute_major * 10 + card->compute_minor) {
	case 70: return 5;          /* Volta */
	case 75: return 6;          /* Turing */
	case 80:
	case 86: return 7; /* Ampere */
	case 89: return 8;          /* Ada */
	case 90: return 9;          /* Hopper */
	default: return card->compute_major >= 10 ? 10 : 0xffffffffu;
	}
}

static unsigned pcie_generation(const struct sim_card *card)
{
	return card->compute_major >= 9 ? 5 : card->compute_major == 8 ? 4 : 3;
}

ANY(Index, (unsigned)sim_nvml_init_index(card))
ANY(MinorNumber, card->minor)
NUMBER(EnforcedPowerLimit, card->power_limit_mw)
NUMBER(PowerManagementLimit, card->power_limit_mw)
NUMBER(PersistenceMode, 1)
NUMBER(ComputeMode, 0)
NUMBER(PerformanceState, PERFORMANCE_STATE)
ANY(Architecture, architecture(card))
ANY(Brand, card->compute_major < 8 ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA)
NUMBER(MemoryBusWidth, card->bus_width)
NUMBER(MultiGpuBoard, 0)
NUMBER(DisplayActive, 0)
NUMBER(DisplayMode, 0)
NUMBER(PowerManagementDefaultLimit, card->power_limit_mw)
NUMBER(PowerManagementMode, 1)
NUMBER(PowerState, PERFORMANCE_STATE)
NUMBER(CurrPcieLinkGeneration, pcie_generation(card))
NUMBER(MaxPcieLinkGeneration, pcie_generation(card))
NUMBER(GpuMaxPcieLinkGeneration, pcie_generation(card))
NUMBER(CurrPcieLinkWidth, 16)
NUMBER(MaxPcieLinkWidth, 16)
NUMBER(PcieReplayCounter, 0)
NUMBER(NumGpuCores, card->sm_count *(card->compute_major == 9 || card->compute_minor == 9 ? 128 : 64))
NUMBER(BoardId, card->pci_domain << 16 | card->pci_bus << 8)
NUMBER(DefaultEccMode, 1)
NUMBER(AccountingBufferSize, 0)
NUMBER(BusType, 2)
NUMBER(NumFans, 0)
NUMBER(ModuleId, (unsigned)sim_nvml_init_index(card) + 1)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	TRY(sim_nvml_init_check_any(device, name));
	return sim_nvml_init_text(name, length, device->name);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
	TRY(sim_nvml_init_check(device, serial));
	return sim_nvml_init_text(serial, length, device->serial);
}

void sim_nvml_device_bus_id(char *out, size_t size, int digits, unsigned domain, unsigned bus, unsigned device)
{
	snprintf(out, size, "%0*X:%02X:%02X.0", digits, domain & 0xffff, bus & 0xff, device & 0x1f);
}

static void bus_id(char *out, size_t size, int digits, const struct sim_card *card)
{
	sim_nvml_device_bus_id(out, size, digits, card->pci_domain, card->pci_bus, card->pci_device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	TRY(sim_nvml_init_check_any(device, info));
	*info = (nvmlPciInfo_t){
		.domain = device->pci_domain,
		.bus = device->pci_bus,
		.device = device->pci_device,
		.pciDeviceId = device->pci_device_id,
		.pciSubSystemId = device->pci_subsystem_id,
	};
	bus_id(info->busIdLegacy, sizeof info->busIdLegacy, 4, device);
	bus_id(info->busId, sizeof info->busId, 8, device);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
	TRY(sim_nvml_init_check_any(device, info));
	*info = (nvmlPciInfo_v2_t){
		.domain = device->pci_domain,
		.bus = device->pci_bus,
		.device = device->pci_device,
		.pciDeviceId = device->pci_device_id,
		.pciSubSystemId = device->pci_subsystem_id,
	};
	bus_id(info->busId, sizeof info->busId, 4, device);
	return NVML_SUCCESS;
}

static nvmlReturn_t measure(nvmlDevice_t device, uint64_t *used, uint64_t *available)
{
	nvmlReturn_t result = sim_nvml_init_return(sim_ledger_shown(sim_nvml_init_card(device), used));
	uint64_t capacity = device->memory - device->reserved;

	if (result == NVML_SUCCESS) {
		if (*used > capacity)
			*used = capacity;
		*available = capacity - *used;
	}
	return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	uint64_t used, available;

	TRY(sim_nvml_init_check_sum(device, memory));
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	TRY(measure(device, &used, &available));
	memory->total = device->memory;
	memory->reserved = device->reserved;
	memory->used = used;
	memory->free = available;
	return NVML_SUCCESS;
}

/* The first version has no member for what the driver keeps, and counts it as used. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	uint64_t used, available;

	TRY(sim_nvml_init_check_sum(device, memory));
	TRY(measure(device, &used, &available));
	memory->total = device->memory;
	memory->used = used + device->reserved;
	memory->free = available;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	TRY(sim_nvml_init_check_any(device, memory));
	*memory = (nvmlBAR1Memory_t){.bar1Total = device->bar1, .bar1Free = device->bar1};
	return NVML_SUCCESS;
}

#define SAMPLING_PERIOD_US 167000u

SIM_EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period)
{
	TRY(sim_nvml_init_check(device, percent));
	REJECT(!period);
	*percent = 0;
	*period = SAMPLING_PERIOD_US;
	return NVML_SUCCESS;
}

SIM_TRAMPOLINE(nvmlDeviceGetDecoderUtilization, nvmlDeviceGetEncoderUtilization)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz)
{
	TRY(sim_nvml_init_check(device, mhz));
	REJECT(type < 0 || type >= NVML_CLOCK_COUNT);
	*mhz = type == NVML_CLOCK_MEM ? device->memory_clock_mhz : device->clock_mhz;
	return NVML_SUCCESS;
}

SIM_TRAMPOLINE(nvmlDeviceGetMaxClockInfo, nvmlDeviceGetClockInfo)

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	TRY(sim_nvml_init_check_any(device, major));
	REJECT(!minor);
	*major = (int)device->compute_major;
	*minor = (int)device->compute_minor;
	return NVML_SUCCESS;
}

/* Cards of this kind have no fan of their own. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
	TRY(sim_nvml_init_check(device, percent));
	return NVML_ERROR_NOT_SUPPORTED;
}

/* For Windows only. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	(void)pending;
	TRY(sim_nvml_init_check(device, current));
	return NVML_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kib)
{
	TRY(sim_nvml_init_check(device, kib));
	REJECT(counter < 0 || counter > 1);
	*kib = 0;
	return NVML_SUCCESS;
}

/*
 * How cards are connected: PCIe, NVLink and its switches. The connections come from the profile.
 */
#include <string.h>

#include "nvml/nvml_sim.h"

#define SWITCH_PCI_DEVICE_ID 0x22a310deu

static nvmlReturn_t check_pair(nvmlDevice_t a, nvmlDevice_t b, const void *out)
{
	TRY(sim_nvml_init_check(a, out));
	return sim_nvml_init_check(b, out);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level)
{
	TRY(check_pair(a, b, level));
	*level = a->relation[sim_nvml_init_card(b)];
	return NVML_SUCCESS;
}

static nvmlReturn_t check_link(nvmlDevice_t device, unsigned link, const void *out)
{
	TRY(sim_nvml_init_check(device, out));
	if (device->link_count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	return link < device->link_count ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
	TRY(check_link(device, link, active));
	*active = device->links[link] != SIM_LINK_NONE;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
	TRY(check_link(device, link, type));
	if (device->links[link] == SIM_LINK_NONE)
		return NVML_ERROR_NOT_SUPPORTED;
	*type = device->links[link] == SIM_LINK_SWITCH ? NVML_NVLINK_DEVICE_SWITCH : NVML_NVLINK_DEVICE_GPU;
	return NVML_SUCCESS;
}

/*
 * A switch has a bus id of its own, different from every card's. A card's bus id is known even if the card is hidden.
 */
static void remote_bus(unsigned end, unsigned *domain, unsigned *bus, unsigned *device, unsigned *id)
{
	if (end == SIM_LINK_SWITCH) {
		*domain = 0;
		*bus = 0xfe;
		*device = 0;
		*id = SWITCH_PCI_DEVICE_ID;
		return;
	}
	*domain = sim_state_card(end)->pci_domain;
	*bus = sim_state_card(end)->pci_bus;
	*device = sim_state_card(end)->pci_device;
	*id = sim_state_card(end)->pci_device_id;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info)
{
	TRY(check_link(device, link, info));
	if (device->links[link] == SIM_LINK_NONE)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof *info);
	remote_bus(device->links[link], &info->domain, &info->bus, &info->device, &info->pciDeviceId);
	sim_nvml_device_bus_id(info->busIdLegacy, sizeof info->busIdLegacy, 4, info->domain, info->bus, info->device);
	sim_nvml_device_bus_id(info->busId, sizeof info->busId, 8, info->domain, info->bus, info->device);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_v2_t *info)
{
	nvmlPciInfo_t full;

	TRY(info ? nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &full) : NVML_ERROR_INVALID_ARGUMENT);
	memset(info, 0, sizeof *info);
	memcpy(info->busId, full.busIdLegacy, sizeof info->busId);
	info->domain = full.domain;
	info->bus = full.bus;
	info->device = full.device;
	info->pciDeviceId = full.pciDeviceId;
	return NVML_SUCCESS;
}

/* The NUMA node that a card's own memory forms, on machines where it does. Near nodes: nvmlDeviceGetMemoryAffinity. */
SIM_EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
	TRY(sim_nvml_init_check(device, node));
	return NVML_ERROR_NOT_SUPPORTED;
}

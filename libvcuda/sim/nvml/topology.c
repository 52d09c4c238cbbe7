/*
 * How cards are connected: PCIe, NVLink and its switches, NUMA nodes and near CPUs. Counters of the links are in
 * nvml/health.c and nvml/field.c; the connections come from the profile.
 */
#include <string.h>

#include "nvml/nvml_sim.h"

#define SWITCH_PCI_DEVICE_ID 0x22a310deu
#define WORD_BITS (8 * sizeof(unsigned long))

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

/* `take` decides for each visible card whether it is listed. Without an array only the number is stored. */
static nvmlReturn_t list_cards(unsigned *count, nvmlDevice_t *out, bool (*take)(nvmlDevice_t, nvmlDevice_t, unsigned),
                               nvmlDevice_t device, unsigned argument)
{
	unsigned room = out ? *count : 0, found = 0;

	for (unsigned i = 0; i < sim_state_card_count(); i++) {
		const struct sim_card *card = sim_state_card(i);
		if (sim_nvml_init_index(card) < 0 || !take(device, card, argument))
			continue;
		if (found < room)
			out[found] = card;
		found++;
	}
	*count = found;
	return out && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static bool is_near_cpu(nvmlDevice_t device, nvmlDevice_t card, unsigned cpu)
{
	(void)device;
	return cpu >= card->cpu_first && cpu - card->cpu_first < card->cpu_count;
}

static bool is_at_level(nvmlDevice_t device, nvmlDevice_t card, unsigned level)
{
	return card != device && device->relation[sim_nvml_init_card(card)] == level;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices)
{
	TRY(sim_nvml_init_ready());
	return count ? list_cards(count, devices, is_near_cpu, NULL, cpu) : NVML_ERROR_INVALID_ARGUMENT;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                                         nvmlDevice_t *devices)
{
	TRY(sim_nvml_init_check(device, count));
	return list_cards(count, devices, is_at_level, device, level);
}

/* No board of the simulator has two cards of this kind. */
SIM_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
	TRY(check_pair(a, b, same));
	*same = a == b;
	return NVML_SUCCESS;
}

typedef struct {
	unsigned char cluster[16];
	unsigned status, clique;
	unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
	unsigned version;
	unsigned char cluster[16];
	unsigned status, clique;
	unsigned char state;
	unsigned health;
} nvmlGpuFabricInfo_v2_t;

enum { FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 3 };

/* Hopper cards behind switches have registered with the fabric. Ampere needs no registration. */
static unsigned char fabric_state(nvmlDevice_t device)
{
	bool switched = device->link_count && device->links[0] == SIM_LINK_SWITCH && device->compute_major >= 9;

	return switched ? FABRIC_COMPLETED : FABRIC_NOT_SUPPORTED;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	TRY(sim_nvml_init_check(device, info));
	*info = (nvmlGpuFabricInfo_t){.state = fabric_state(device)};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info)
{
	TRY(sim_nvml_init_check(device, info));
	if (info->version != (sizeof *info | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*info = (nvmlGpuFabricInfo_v2_t){.version = info->version, .state = fabric_state(device)};
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int capability, unsigned *status)
{
	TRY(check_pair(a, b, status));
	REJECT(a == b || capability < 0 || capability >= NVML_P2P_CAPS_UNKNOWN);
	*status = sim_state_linked(sim_nvml_init_card(a), sim_nvml_init_card(b)) ? NVML_P2P_OK : NVML_P2P_NOT_SUPPORTED;
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

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
	TRY(check_link(device, link, version));
	*version = device->compute_major >= 9 ? 4 : device->compute_major == 8 ? 3 : 2;
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

static void set_bits(unsigned long *words, unsigned size, unsigned first, unsigned count)
{
	memset(words, 0, size * sizeof *words);
	for (unsigned i = first; i < first + count && i / WORD_BITS < size; i++)
		words[i / WORD_BITS] |= 1ul << i % WORD_BITS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *nodes,
                                                    unsigned scope)
{
	TRY(sim_nvml_init_check(device, nodes));
	REJECT(size == 0 || scope > 1);
	if (device->numa_node < 0)
		return NVML_ERROR_NOT_SUPPORTED;
	set_bits(nodes, size, (unsigned)device->numa_node, 1);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long *cpus,
                                                            unsigned scope)
{
	TRY(sim_nvml_init_check(device, cpus));
	REJECT(size == 0 || scope > 1);
	set_bits(cpus, size, device->cpu_first, device->cpu_count);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *cpus)
{
	return nvmlDeviceGetCpuAffinityWithinScope(device, size, cpus, 0);
}

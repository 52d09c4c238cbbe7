/*
 * Devices: their number, names, UUIDs, memory, PCI addresses and peers, and the checks that an ordinal exists.
 * Attributes are in cuda/base/attribute.c; state/nodes.c decides which cards are visible.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/base/driver.h"

const struct sim_card *sim_device_card(CUdevice device)
{
	return sim_state_card(sim_driver.devices[device].card);
}

CUresult sim_device(CUdevice device)
{
	TRY(sim_init_ready());
	return device >= 0 && device < sim_driver.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

int sim_device_ordinal(unsigned card)
{
	for (int i = 0; i < sim_driver.device_count; i++)
		if (sim_driver.devices[i].card == card)
			return i;
	return -1;
}

static CUresult checked(CUdevice device, const void *out)
{
	CUresult result = sim_device(device);

	return result == CUDA_SUCCESS && !out ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuDeviceGetCount(int *count)
{
	TRY(sim_init_ready());
	REJECT(!count);
	*count = sim_driver.device_count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	TRY(checked(ordinal, device));
	*device = ordinal;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	TRY(checked(device, name));
	REJECT(length <= 0);
	snprintf(name, (size_t)length, "%s", sim_device_card(device)->name);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	TRY(checked(device, uuid));
	memcpy(uuid->bytes, sim_device_card(device)->uuid, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

/* Of an instance, its card's. */
SIM_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	TRY(checked(device, uuid));
	const struct sim_card *card = sim_device_card(device);
	const struct sim_card *whole = card->instance ? sim_state_card(card->parent) : card;
	memcpy(uuid->bytes, whole->uuid, sizeof uuid->bytes);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	TRY(checked(device, bytes));
	*bytes = sim_device_card(device)->memory - sim_device_card(device)->reserved;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	TRY(checked(device, major));
	REJECT(!minor);
	*major = (int)sim_device_card(device)->compute_major;
	*minor = (int)sim_device_card(device)->compute_minor;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
	TRY(checked(device, text));
	REJECT(length <= 0);
	const struct sim_card *card = sim_device_card(device);
	snprintf(text, (size_t)length, "%04x:%02x:%02x.0", card->pci_domain, card->pci_bus, card->pci_device);
	return CUDA_SUCCESS;
}

/* "domain:bus:device.function", "domain:bus:device" or "bus:device.function". */
static bool parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device)
{
	if (sscanf(text, "%x:%x:%x", domain, bus, device) == 3)
		return true;
	*domain = 0;
	return sscanf(text, "%x:%x", bus, device) == 2;
}

SIM_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
	unsigned domain, bus, slot;

	TRY(sim_init_ready());
	REJECT(!device || !text || !parse_bus_id(text, &domain, &bus, &slot));
	for (int i = 0; i < sim_driver.device_count; i++) {
		const struct sim_card *card = sim_device_card(i);
		if (card->pci_domain == domain && card->pci_bus == bus && card->pci_device == slot) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult result = checked(device, can);

	if (result == CUDA_SUCCESS)
		result = sim_device(peer);
	if (result == CUDA_SUCCESS)
		*can = device != peer &&
		       sim_state_linked(sim_driver.devices[device].card, sim_driver.devices[peer].card);
	return result;
}

/* rank, access, atomics, arrays: all or none, depending on NVLink */
SIM_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
	TRY(sim_device(from));
	TRY(sim_device(to));
	REJECT(!value || attribute < 1 || attribute > 4 || from == to);
	bool linked = sim_state_linked(sim_driver.devices[from].card, sim_driver.devices[to].card);
	*value = attribute == 1 ? 0 : linked;
	return CUDA_SUCCESS;
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_sim.h"

const struct sim_card *sim_device_card(CUdevice device)
{
	return sim_card(sim_driver.devices[device].card);
}

CUresult sim_device(CUdevice device)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	return device >= 0 && device < sim_driver.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult checked(CUdevice device, const void *out)
{
	CUresult result = sim_device(device);

	return result == CUDA_SUCCESS && !out ? CUDA_ERROR_INVALID_VALUE : result;
}

SIM_EXPORT CUresult cuDeviceGetCount(int *count)
{
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_driver.device_count;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult result = checked(ordinal, device);

	if (result == CUDA_SUCCESS)
		*device = ordinal;
	return result;
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUresult result = checked(device, name);

	if (result != CUDA_SUCCESS)
		return result;
	if (length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "%s", sim_device_card(device)->name);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	CUresult result = checked(device, uuid);

	if (result == CUDA_SUCCESS)
		memcpy(uuid->bytes, sim_device_card(device)->uuid, sizeof uuid->bytes);
	return result;
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = checked(device, bytes);

	if (result == CUDA_SUCCESS)
		*bytes = sim_device_card(device)->memory - sim_device_card(device)->reserved;
	return result;
}

/* What depends on the compute capability alone. */
static const struct generation {
	unsigned capability;
	int threads_per_sm, blocks_per_sm, shared_per_sm, shared_optin;
} generations[] = {
	{70, 2048, 32, 98304, 98304},   {75, 1024, 16, 65536, 65536},   {80, 2048, 32, 167936, 166912},
	{86, 1536, 16, 102400, 101376}, {89, 1536, 24, 102400, 101376}, {90, 2048, 32, 233472, 232448},
};

static const struct generation *generation_of(const struct sim_card *card)
{
	const struct generation *best = &generations[0];

	for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
		if (generations[i].capability <= card->compute_major * 10 + card->compute_minor)
			best = &generations[i];
	return best;
}

unsigned sim_threads_per_sm(const struct sim_card *card)
{
	return (unsigned)generation_of(card)->threads_per_sm;
}

unsigned sim_shared_per_sm(const struct sim_card *card)
{
	return (unsigned)generation_of(card)->shared_per_sm;
}

static int attribute_of(const struct sim_card *card, int attribute)
{
	const struct generation *generation = generation_of(card);

	switch (attribute) {
	case 1: return MAX_THREADS_PER_BLOCK;
	case 2: case 3: return 1024;                    /* block, x and y */
	case 4: return 64;                              /* block, z */
	case 5: return 0x7fffffff;                      /* grid, x */
	case 6: case 7: return 65535;
	case 8: return 49152;                           /* shared memory per block */
	case 9: return 65536;                           /* constant memory */
	case 10: return 32;                             /* warp */
	case 11: return 0x7fffffff;                     /* pitch */
	case 12: case 82: return 65536;                 /* registers per block, per SM */
	case 13: return (int)card->clock_mhz * 1000;
	case 14: return 512;                            /* texture alignment */
	case 15: case 19: case 31: return 1;            /* overlap, host mapping, concurrent kernels */
	case 16: return (int)card->sm_count;
	case 33: return (int)card->pci_bus;
	case 34: return (int)card->pci_device;
	case 36: return (int)card->memory_clock_mhz * 1000;
	case 37: return (int)card->bus_width;
	case 38: return (int)card->l2_bytes;
	case 39: return generation->threads_per_sm;
	case 40: return 3;                              /* copy engines */
	case 41: return 1;                              /* unified addressing */
	case 50: return (int)card->pci_domain;
	case 51: return 32;                             /* texture pitch alignment */
	case 75: return (int)card->compute_major;
	case 76: return (int)card->compute_minor;
	case 78: return 1;                              /* stream priorities */
	case 79: case 80: return 1;                     /* global and local L1 cache */
	case 81: return generation->shared_per_sm;
	case 83: case 89: return 1;                     /* managed memory, concurrently */
	case 90: case 91: return 1;                     /* compute preemption, registered host pointers */
	case 97: return generation->shared_optin;
	case 106: return generation->blocks_per_sm;
	case 111: return 1024;                          /* shared memory reserved per block */
	case 102: case 103: return 1;                   /* virtual memory, shared by file descriptors */
	case 115: return 1;                             /* memory pools */
	default: return 0;                              /* what the simulator cannot do is not advertised */
	}
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	CUresult result = checked(device, value);

	if (result != CUDA_SUCCESS)
		return result;
	if (attribute <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute_of(sim_device_card(device), attribute);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	CUresult result = checked(device, major);

	if (result != CUDA_SUCCESS)
		return result;
	if (!minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = (int)sim_device_card(device)->compute_major;
	*minor = (int)sim_device_card(device)->compute_minor;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
	CUresult result = checked(device, text);

	if (result != CUDA_SUCCESS)
		return result;
	if (length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
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
	CUresult result = sim_ready();

	if (result != CUDA_SUCCESS)
		return result;
	if (!device || !text || !parse_bus_id(text, &domain, &bus, &slot))
		return CUDA_ERROR_INVALID_VALUE;
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
		*can = device != peer && sim_linked(sim_driver.devices[device].card, sim_driver.devices[peer].card);
	return result;
}

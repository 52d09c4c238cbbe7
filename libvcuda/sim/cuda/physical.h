/*
 * Physical memory and its handle, for the files that map it, export it or bind it: cuda/vmm.c creates and maps it,
 * cuda/multicast.c combines memory of several cards.
 */
#ifndef CUDA_PHYSICAL_H
#define CUDA_PHYSICAL_H

#include "cuda/cuda_sim.h"
#include "cuda/structs.h"

#define SIM_GRANULARITY ((size_t)2 << 20)

struct sim_physical {
	struct sim_object object;
	CUmemAllocationProp properties;
	size_t size;
	uint64_t charged;
	unsigned card;
	unsigned handles;  /* handles that the program holds */
	unsigned mappings; /* mappings and bindings */
	int fd;            /* file by which other processes map it; -1 until needed */
	int shared;        /* its number among the exported memory; -1: it is not exported */
	int life;          /* the descriptor that keeps exported or imported memory on its card; -1: none */
	char *backing;
	unsigned multicast_wanted;  /* number of devices; 0: not a multicast object */
	unsigned multicast_devices; /* bit n: device n was added */
	struct sim_binding *bindings;
};

/* Under the lock. */
CUresult sim_vmm_new(struct sim_physical **out, const CUmemAllocationProp *properties, unsigned card, size_t size,
                          bool charges);
/* Locks and checks. In this part of the interface an invalid handle is CUDA_ERROR_INVALID_VALUE. */
CUresult sim_vmm_lock(CUmemGenericAllocationHandle handle);
void sim_multicast_bindings_drop(struct sim_binding *bindings);
/* Whether the device is on a board with NVSwitches and can multicast. */
bool sim_attribute_multicasts(CUdevice device);

#endif

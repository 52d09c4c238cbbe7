/* Physical memory, behind its handle; see cuda/vmm.c, and cuda/multicast.c for that of several cards. */
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
	unsigned handles;  /* that the program has */
	unsigned mappings; /* and what it is bound to */
	int fd;            /* what other processes map it by; -1 until wanted */
	char *backing;
	unsigned multicast_wanted;  /* devices; 0: it is no multicast object */
	unsigned multicast_devices; /* bit n: device n was added */
	struct sim_binding *bindings;
};

/* Under the lock. */
CUresult sim_physical_new(struct sim_physical **out, const CUmemAllocationProp *properties, unsigned card, size_t size,
                          bool charges);
/* An invalid handle is an invalid value in this part of the interface. */
CUresult sim_lock_physical(CUmemGenericAllocationHandle handle);
void sim_bindings_drop(struct sim_binding *bindings);
/* Is the device on a board with NVSwitches that can? */
bool sim_multicasts(CUdevice device);

#endif

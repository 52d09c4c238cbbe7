/*
 * Physical memory and its handle, for the files that map it, export it or bind it: cuda/memory/vmm.c maps it,
 * cuda/memory/multicast.c combines memory of several cards.
 */
#ifndef CUDA_PHYSICAL_H
#define CUDA_PHYSICAL_H

#include "cuda/memory/allocation.h"

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

/* Physical memory that a multicast object or an endpoint has at an offset. */
struct sim_binding {
	CUdevice device;
	size_t offset, size;
	struct sim_physical *memory;
	struct sim_binding *next;
};

#define SIM_ANY_DEVICE (-1)

/* Under the lock. */
CUresult sim_physical_new(struct sim_physical **out, const CUmemAllocationProp *properties, unsigned card, size_t size,
			  bool charges);
void sim_physical_release(struct sim_physical *physical); /* a handle of the program */
void sim_physical_drop(struct sim_physical *physical);    /* a mapping or a binding */
char *sim_physical_backing(struct sim_physical *physical);
bool sim_physical_fits(const struct sim_physical *physical, size_t offset, size_t size);
CUresult sim_physical_bind(struct sim_binding **list, CUdevice device, size_t offset, size_t size,
			   struct sim_physical *memory);
/* Ends the bindings that begin in the range. Returns whether there were any. */
bool sim_physical_unbind(struct sim_binding **list, CUdevice device, size_t offset, size_t size);
/* Locks and checks. In this part of the interface an invalid handle is CUDA_ERROR_INVALID_VALUE. */
CUresult sim_physical_lock(CUmemGenericAllocationHandle handle);

#endif

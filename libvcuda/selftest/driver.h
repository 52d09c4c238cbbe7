/*
 * The driver's libraries, as the self-test uses them: by dlopen and dlsym alone, as programs do. So it meets libvcuda
 * where libvcuda takes libcuda's place, and the driver where it does not.
 *
 * Belongs here: the functions that the other files call, the clock, and the card in use. A function that this driver
 * lacks is one that answers CUDA_ERROR_NOT_FOUND: its row of the self-test says so.
 */
#ifndef SELFTEST_DRIVER_H
#define SELFTEST_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "vgpu_sim_clock.h"

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

/* What libvcuda itself does not call, so that cuda_abi.h lacks it. */
CUresult cuDriverGetVersion(int *version);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
				CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
			     unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size);
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count);
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option);
CUresult cuMemAllocHost_v2(void **pointer, size_t size);
CUresult cuMemFreeHost(void *pointer);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);

struct driver_functions {
#define FUNCTION(name) __typeof__(name) *name;
#include "functions.def"
#undef FUNCTION
};

/* Filled by driver_open. */
extern struct driver_functions cu;

struct driver_card {
	bool is_used; /* by the command `use` */
	CUdevice device;
	CUcontext context;
	CUstream stream, beside; /* beside: of copies */
	CUfunction spin, trace;
	uint64_t gap; /* ns: a larger step of the card's clock is time in which a kernel did not run */
	uint64_t
		resolution; /* ns between two values of the card's clock; 0: kernels compute nothing, or it stands still */
	nvmlDevice_t nvml; /* NULL: there is no NVML */
};
extern struct driver_card driver_card;

/* Opens libcuda, or the library that is named instead. NULL, or the loader's complaint. */
const char *driver_open(const char *library);
/* Opens libnvidia-ml: false if there is none that works. */
bool driver_open_nvml(void);

/* ns of CLOCK_MONOTONIC, or of the simulator's clock. */
uint64_t driver_now(void);
void driver_sleep_until(uint64_t time);
bool driver_clock_is_virtual(void);
/* ns for which threads of this process could run and had no processor; 0 by a virtual clock, which waits for them. */
uint64_t driver_lost(void);
/* Around a wait for something else than the card or the time. */
void driver_waits(bool waits);

#endif

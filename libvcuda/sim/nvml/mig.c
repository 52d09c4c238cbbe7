/*
 * MIG: its mode, the handles of instances, and their ids and sizes. An instance is a card with a parent (state/state.h),
 * so the other files of nvml/ answer for it as for a card. What the driver does not support for one is
 * NVML_ERROR_NOT_SUPPORTED, see sim_nvml_init_check. An instance that was destroyed makes its handle invalid, until a
 * call gives the same handle for another one.
 */
#include "nvml/nvml_sim.h"
#include "state/trampoline.h"

SIM_TRAMPOLINE(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2)

enum { MOST_INSTANCES = 7 };

typedef struct {
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow, gpu_slices, compute_slices;
	unsigned long long memory_mib;
} nvmlDeviceAttributes_t;

_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");

static nvmlReturn_t check_capable(nvmlDevice_t device, const void *out)
{
	TRY(sim_nvml_init_check(device, out));
	return device->compute_major < 8 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

static nvmlReturn_t check_instance(nvmlDevice_t device, const void *out)
{
	TRY(sim_nvml_init_check_any(device, out));
	return device->instance ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	TRY(check_capable(device, current));
	REJECT(!pending);
	*current = sim_state_mig(sim_nvml_init_card(device), false);
	*pending = sim_state_mig(sim_nvml_init_card(device), true);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	TRY(sim_nvml_init_check(device, count));
	*count = device->compute_major < 8 ? 0 : MOST_INSTANCES;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
	TRY(sim_nvml_init_check_any(device, is_mig));
	*is_mig = device->instance != 0;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
	unsigned entries[SIM_MAX_CARDS];

	TRY(check_capable(device, mig));
	REJECT(index >= MOST_INSTANCES);
	if (index >= sim_nodes_visible_instances(sim_nvml_init_card(device), entries))
		return NVML_ERROR_NOT_FOUND;
	*mig = sim_state_card(entries[index]);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *whole)
{
	TRY(sim_nvml_init_check_any(device, whole));
	REJECT(!device->instance);
	*whole = sim_nvml_init_whole(device);
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
	TRY(check_instance(device, id));
	*id = device->gi;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
	TRY(check_instance(device, id));
	*id = device->ci;
	return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	TRY(check_instance(device, out));
	*out = (nvmlDeviceAttributes_t){
		.multiprocessors = device->sm_count,
		.copy_engines = device->gi_slices,
		.gpu_slices = device->gi_slices,
		.compute_slices = device->ci_slices,
		.memory_mib = device->memory >> 20,
	};
	return NVML_SUCCESS;
}

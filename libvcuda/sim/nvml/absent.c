/*
 * Functions of NVML that the simulator does not implement. Each is exported at an address of its own and returns
 * NVML_ERROR_NOT_SUPPORTED once NVML is initialized. The names are in nvml/absent.def.
 */
#include "nvml/nvml_sim.h"
#include "state/trampoline.h"

nvmlReturn_t sim_nvml_absent(void);

nvmlReturn_t sim_nvml_absent(void)
{
	TRY(sim_nvml_init_ready());
	return NVML_ERROR_NOT_SUPPORTED;
}

#define ABSENT(name) SIM_TRAMPOLINE(name, sim_nvml_absent)
#include "nvml/absent.def"

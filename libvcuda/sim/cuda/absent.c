/*
 * Functions of the driver that the simulator does not implement. Each is exported at an address of its own and returns
 * CUDA_ERROR_NOT_SUPPORTED once the driver is initialized. The names are the ABSENT lines of cuda/entries.def, which
 * cuda/entries.c expands.
 */
#include "cuda/cuda_sim.h"

CUresult sim_absent(void);

CUresult sim_absent(void)
{
	TRY(sim_init_ready());
	return CUDA_ERROR_NOT_SUPPORTED;
}

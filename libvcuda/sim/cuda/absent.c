/* Functions of the driver that the simulator does not have: they exist, each at its own address, and say so. */
#include "cuda/cuda_sim.h"

CUresult sim_absent(void);

CUresult sim_absent(void)
{
	CUresult result = sim_ready();

	return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : result;
}

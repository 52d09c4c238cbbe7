/* Launches. Nothing is computed: a launch is checked, and then takes its time; see README.md for how much. */
#include "cuda_module.h"

static bool fits(const unsigned extent[3], uint64_t max_x, uint64_t max_y, uint64_t max_z)
{
	return extent[0] && extent[1] && extent[2] && extent[0] <= max_x && extent[1] <= max_y && extent[2] <= max_z;
}

CUresult sim_launch_prepare(const struct sim_launch *launch, struct sim_work *work)
{
	if (!fits(launch->grid, 0x7fffffff, 65535, 65535) || !fits(launch->block, 1024, 1024, 64) ||
	    (uint64_t)launch->block[0] * launch->block[1] * launch->block[2] > MAX_THREADS_PER_BLOCK)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(launch->function, SIM_FUNCTION);
	if (result != CUDA_SUCCESS)
		return result;
	*work = (struct sim_work){.type = CU_GRAPH_NODE_TYPE_KERNEL, .launch = *launch};
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

static CUresult launch(const struct sim_launch *launch, CUstream stream)
{
	struct sim_work work;
	CUresult result = sim_check_stream(stream);

	if (result == CUDA_SUCCESS)
		result = sim_launch_prepare(launch, &work);
	return result == CUDA_SUCCESS ? sim_submit(stream, &work, false) : result;
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                   CUstream stream, void **parameters, void **extra)
{
	struct sim_context *context;
	struct sim_launch described = {function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, false};
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	return parameters && extra ? CUDA_ERROR_INVALID_VALUE : launch(&described, stream);
}

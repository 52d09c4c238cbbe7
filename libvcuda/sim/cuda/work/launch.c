/*
 * Launches of kernels and of host functions. Nothing is computed: a launch is checked, and then takes its time
 * (README.md has the rules for how long). This file makes a sim_work of a launch; cuda/work/queue.c submits it and
 * cuda/work/engine.c lets it run.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/work/launch.h"
#include "state/clock.h"

static bool extent_fits(const unsigned extent[3], uint64_t max_x, uint64_t max_y, uint64_t max_z)
{
	return extent[0] && extent[1] && extent[2] && extent[0] <= max_x && extent[1] <= max_y && extent[2] <= max_z;
}

static uint64_t product(const unsigned extent[3])
{
	return (uint64_t)extent[0] * extent[1] * extent[2];
}

/* The part of the card's thread slots that the grid fills, in 1/1000. */
static unsigned share_of_launch(const struct sim_launch *launch, const struct sim_card *card)
{
	uint64_t threads = (product(launch->block) + 31) / 32 * 32;
	uint64_t slots = (uint64_t)card->sm_count * sim_attribute_threads_per_sm(card);

	if (launch->cooperative || !slots || product(launch->grid) >= slots)
		return SIM_WHOLE_CARD;
	uint64_t share = product(launch->grid) * threads * SIM_WHOLE_CARD / slots;
	return share < 1 ? 1 : share > SIM_WHOLE_CARD ? SIM_WHOLE_CARD : (unsigned)share;
}

/* VGPU_SIM_KERNEL_NS replaces the profile's duration for one process. */
static uint64_t general_duration(void)
{
	static uint64_t duration;
	const char *override;

	if (!duration) {
		override = getenv("VGPU_SIM_KERNEL_NS");
		duration = override && *override ? strtoull(override, NULL, 10) : sim_state_header()->kernel_ns;
		if (!duration)
			duration = 1;
	}
	return duration;
}

static uint64_t duration_of(const struct sim_function *function, void **arguments)
{
	uint64_t duration = function->duration;

	if (function->takes_first_argument && arguments && arguments[0])
		memcpy(&duration, arguments[0], sizeof duration);
	if (duration > 3600000000000ull)
		duration = 3600000000000ull;
	return duration ? duration : general_duration();
}

CUresult sim_launch_prepare(const struct sim_launch *launch, void **arguments, struct sim_work *work)
{
	REJECT(!extent_fits(launch->grid, 0x7fffffff, 65535, 65535) || !extent_fits(launch->block, 1024, 1024, 64) ||
	       product(launch->block) > MAX_THREADS_PER_BLOCK);
	TRY(sim_object_lock(launch->function, SIM_FUNCTION));
	CUresult result = sim_function_load(launch->function);
	*work = (struct sim_work){
		.type = CU_GRAPH_NODE_TYPE_KERNEL,
		.launch = *launch,
		.duration = duration_of(launch->function, arguments),
		.share = share_of_launch(launch, sim_device_card(launch->function->object.context->device)),
	};
	if (launch->function->meets && arguments && arguments[1] && arguments[2]) {
		memcpy(&work->meeting, arguments[1], sizeof work->meeting);
		memcpy(&work->parties, arguments[2], sizeof work->parties);
	}
	return sim_object_unlock(result);
}

/* A green context has a part of the multiprocessors: what would fill more takes longer in proportion. */
void sim_launch_restrict(struct sim_work *work, const struct sim_context *context)
{
	unsigned total = sim_device_card(context->device)->sm_count;
	unsigned share = context->sm_count ? context->sm_count * 1000 / total : 1000;

	if (work->share <= share || !share)
		return;
	work->duration = work->duration * work->share / share;
	work->share = share;
}

static CUresult launch(const struct sim_launch *launch, CUstream stream, void **arguments, void **extra)
{
	struct sim_context *context;
	struct sim_work work;

	TRY(sim_context_current(&context));
	REJECT(arguments && extra);
	TRY(sim_stream_context(stream, &context));
	TRY(sim_launch_prepare(launch, arguments, &work));
	sim_launch_restrict(&work, context);
	sim_clock_pay(SIM_COST_LAUNCH);
	return sim_queue_submit(stream, &work, false);
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
				   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
				   CUstream stream, void **arguments, void **extra)
{
	struct sim_launch described = {function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, false};

	return launch(&described, stream, arguments, extra);
}

SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
					      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
					      CUstream stream, void **arguments)
{
	struct sim_launch described = {function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, true};

	return launch(&described, stream, arguments, NULL);
}

struct device_launch { /* CUDA_LAUNCH_PARAMS */
	CUfunction function;
	unsigned grid[3], block[3], shared;
	CUstream stream;
	void **arguments;
};

SIM_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(const struct device_launch *list, unsigned count,
							 unsigned flags)
{
	CUresult result = list && count && flags <= 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
		struct sim_launch described = {
			.function = list[i].function, .shared = list[i].shared, .cooperative = true};
		memcpy(described.grid, list[i].grid, sizeof described.grid);
		memcpy(described.block, list[i].block, sizeof described.block);
		result = launch(&described, list[i].stream, list[i].arguments, NULL);
	}
	return result;
}

/* Attributes have a number, padding and a value of 64 bytes. Only the cooperative one matters here. */
struct attribute {
	int id, padding;
	union {
		int number;
		char bytes[64];
	} value;
};

#define ATTRIBUTE_COOPERATIVE 2

SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
	REJECT(!config || (config->numAttrs && !config->attrs));
	struct sim_launch described = {
		.function = function,
		.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
		.block = {config->blockDimX, config->blockDimY, config->blockDimZ},
		.shared = config->sharedMemBytes,
	};
	const struct attribute *attributes = config->attrs;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (attributes[i].id == ATTRIBUTE_COOPERATIVE && attributes[i].value.number)
			described.cooperative = true;
	return launch(&described, config->hStream, arguments, extra);
}

/* The stream is a member of the structure, so a trampoline cannot replace it. */
SIM_EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
					  void **extra)
{
	REJECT(!config);
	CUlaunchConfig own = *config;
	if (!own.hStream)
		own.hStream = CU_STREAM_PER_THREAD;
	return cuLaunchKernelEx(&own, function, arguments, extra);
}

/* The interface before cuLaunchKernel sets block and arguments beforehand; arguments have no effect here. */
static _Thread_local struct {
	CUfunction function;
	unsigned block[3], shared;
} earlier;

static void remember_function(CUfunction function)
{
	if (earlier.function == function)
		return;
	memset(&earlier, 0, sizeof earlier);
	earlier.function = function;
}

SIM_EXPORT CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
	remember_function(function);
	earlier.block[0] = (unsigned)x;
	earlier.block[1] = (unsigned)y;
	earlier.block[2] = (unsigned)z;
	return x > 0 && y > 0 && z > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	struct sim_launch described = {.function = function, .grid = {(unsigned)width, (unsigned)height, 1}};

	remember_function(function);
	memcpy(described.block, earlier.block, sizeof described.block);
	described.shared = earlier.shared;
	return launch(&described, stream, NULL, NULL);
}

SIM_EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return cuLaunchGridAsync(function, width, height, NULL);
}

SIM_EXPORT CUresult cuLaunch(CUfunction function)
{
	return cuLaunchGrid(function, 1, 1);
}

static CUresult submit_host_call(CUstream stream, struct sim_host_call call)
{
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = call};

	return sim_queue_submit(stream, &work, false);
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument)
{
	REJECT(!function);
	return submit_host_call(stream, (struct sim_host_call){.function = function, .argument = argument});
}

SIM_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument, unsigned flags)
{
	REJECT(!callback || flags);
	return submit_host_call(stream,
				(struct sim_host_call){.callback = callback, .argument = argument, .stream = stream});
}

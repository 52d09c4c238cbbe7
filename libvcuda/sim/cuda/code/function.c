/*
 * Functions: attributes, occupancy, parameters, and the duration in a function's name. Launches are in cuda/work/launch.c;
 * kernels of libraries in cuda/code/library.c; where the parameters come from in cuda/code/cubin.c and cuda/code/ptx.c.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/code/module.h"

/* A name "<anything>_<number>{ns,us,ms}" sets the duration. "<anything>_ns" takes it from the first argument. */
void sim_function_time(struct sim_function *function)
{
	static const struct {
		const char *suffix;
		uint64_t unit;
	} units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
	const char *last = strrchr(function->name, '_');
	char *end;

	if (!last)
		return;
	unsigned long long number = strtoull(last + 1, &end, 10);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (strcmp(end, units[i].suffix) == 0 && end > last + 1 && number <= 3600000000000ull / units[i].unit)
			function->duration = number * units[i].unit;
	const struct sim_kernel *kernel = function->kernel;
	function->takes_first_argument =
		strcmp(last, "_ns") == 0 && kernel && kernel->parameter_count && kernel->parameters[0].size == 8;
	function->meets = strstr(function->name, "meet_") && kernel && kernel->parameter_count == 3 &&
			  kernel->parameters[1].size == 8 && kernel->parameters[2].size == 8;
}

CUresult sim_function_load(struct sim_function *function)
{
	uint64_t bytes = sim_state_header()->function_bytes;

	if (function->charged || !bytes)
		return CUDA_SUCCESS;
	TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[function->object.context->device].card, bytes)));
	function->charged = bytes;
	function->module->charged += bytes;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncLoad(CUfunction function)
{
	TRY(sim_object_lock(function, SIM_FUNCTION));
	return sim_object_unlock(sim_function_load(function));
}

static int attribute_of(const struct sim_function *function, CUfunction_attribute attribute)
{
	const struct sim_card *card = sim_device_card(function->object.context->device);

	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return MAX_THREADS_PER_BLOCK;
	case CU_FUNC_ATTRIBUTE_NUM_REGS: return 32;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return (int)(card->compute_major * 10 + card->compute_minor);
	default: return function->settings[attribute];
	}
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	REJECT(!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX);
	TRY(sim_object_lock(function, SIM_FUNCTION));
	*value = attribute_of(function, attribute);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	/* Lower attributes are properties of the code. */
	REJECT(attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attribute >= CU_FUNC_ATTRIBUTE_MAX);
	TRY(sim_object_lock(function, SIM_FUNCTION));
	function->settings[attribute] = value;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	TRY(module ? sim_object_lock(function, SIM_FUNCTION) : CUDA_ERROR_INVALID_VALUE);
	*module = function->module;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuFuncGetName(const char **name, CUfunction function)
{
	TRY(name ? sim_object_lock(function, SIM_FUNCTION) : CUDA_ERROR_INVALID_VALUE);
	*name = function->name;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	TRY(offset ? sim_object_lock(function, SIM_FUNCTION) : CUDA_ERROR_INVALID_VALUE);
	const struct sim_kernel *kernel = function->kernel;
	if (!kernel || index >= kernel->parameter_count)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	*offset = kernel->parameters[index].offset;
	if (size)
		*size = kernel->parameters[index].size;
	return sim_object_unlock(CUDA_SUCCESS);
}

static unsigned blocks_per_sm(const struct sim_card *card, int threads, size_t shared)
{
	unsigned warps = (unsigned)(threads + 31) / 32;
	unsigned by_threads = sim_attribute_threads_per_sm(card) / (warps * 32);
	unsigned by_blocks = card->compute_major == 7 && card->compute_minor == 5 ? 16 : 32;
	unsigned by_shared = shared ? (unsigned)(sim_attribute_shared_per_sm(card) / (shared + 1024)) : by_blocks;
	unsigned blocks = by_threads < by_blocks ? by_threads : by_blocks;

	return blocks < by_shared ? blocks : by_shared;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
									 size_t shared, unsigned flags)
{
	REJECT(!blocks || threads <= 0 || flags > 1);
	TRY(sim_object_lock(function, SIM_FUNCTION));
	const struct sim_card *card = sim_device_card(function->object.context->device);
	*blocks = threads > (int)MAX_THREADS_PER_BLOCK ? 0 : (int)blocks_per_sm(card, threads, shared);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
								size_t shared)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

typedef size_t (*shared_of_block)(int);

/* The largest block that still fills a multiprocessor with the most threads. */
SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
							      shared_of_block shared_of, size_t shared, int limit,
							      unsigned flags)
{
	int best = 0, most = 0, blocks;

	REJECT(!grid || !block);
	for (int threads = MAX_THREADS_PER_BLOCK; threads >= 32; threads -= 32) {
		if (limit > 0 && threads > limit)
			continue;
		TRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
			&blocks, function, threads, shared_of ? shared_of(threads) : shared, flags));
		if (blocks * threads > most) {
			most = blocks * threads;
			best = threads;
		}
	}
	*block = best;
	*grid = best ? most / best * (int)sim_device_card(function->object.context->device)->sm_count : 0;
	return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
						     shared_of_block shared_of, size_t shared, int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}

/*
 * The memory of a module's variables: an allocation for each variable, made when the program first asks for its
 * address. The list of an image's variables is in cuda/code/image.h; modules are in cuda/code/module.c.
 */
#include "cuda/code/variable.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/memory/allocation.h"

struct sim_place_of_variable {
	char *name;
	CUdeviceptr base;
	struct sim_place_of_variable *next;
};

static struct sim_place_of_variable *find_variable(const struct sim_module *module, const char *name)
{
	for (struct sim_place_of_variable *at = module->variables; at; at = at->next)
		if (strcmp(at->name, name) == 0)
			return at;
	return NULL;
}

static CUresult remember_variable(struct sim_module *module, const char *name, CUdeviceptr base)
{
	struct sim_place_of_variable *place = calloc(1, sizeof *place);

	if (!place || !(place->name = strdup(name))) {
		free(place);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	place->base = base;
	place->next = module->variables;
	module->variables = place;
	return CUDA_SUCCESS;
}

CUresult sim_variable_address(struct sim_module *module, const char *name, size_t bytes, CUdeviceptr *pointer)
{
	CUresult result = sim_object_lock(module, SIM_MODULE);
	struct sim_allocation *allocation;

	if (result != CUDA_SUCCESS)
		return result;
	struct sim_place_of_variable *place = find_variable(module, name);
	struct sim_context *context = module->object.context;
	CUdeviceptr base = place ? place->base : 0;
	pthread_mutex_unlock(&sim_driver.lock);
	if (!base) {
		result = sim_allocation_new(context, NULL, SIM_VARIABLE_MEMORY, bytes, &allocation);
		if (result != CUDA_SUCCESS)
			return result;
		base = allocation->base;
		pthread_mutex_lock(&sim_driver.lock);
		result = remember_variable(module, name, base);
		pthread_mutex_unlock(&sim_driver.lock);
	}
	if (pointer)
		*pointer = base;
	return result;
}

void sim_variable_drop_all(struct sim_module *module)
{
	while (module->variables) {
		struct sim_place_of_variable *place = module->variables;
		struct sim_allocation *allocation = sim_allocation_at(place->base, 0);
		module->variables = place->next;
		if (allocation && allocation->memory == SIM_VARIABLE_MEMORY)
			sim_allocation_drop(allocation);
		free(place->name);
		free(place);
	}
}

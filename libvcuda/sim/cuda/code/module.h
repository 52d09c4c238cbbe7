/*
 * The structures of modules and functions, for the files that load them, launch them or read their attributes. The
 * contents of an image are in cuda/code/image.h.
 */
#ifndef CUDA_MODULE_H
#define CUDA_MODULE_H

#include "cuda/base/context.h"
#include "cuda/code/image.h"

struct sim_module {
	struct sim_object object;
	struct sim_image image;
	uint64_t charged; /* bytes for its code */
	struct sim_place_of_variable *variables;
};

struct sim_function {
	struct sim_object object;
	struct sim_module *module;
	const struct sim_kernel *kernel; /* its entry in the image */
	int settings[CU_FUNC_ATTRIBUTE_MAX];
	uint64_t charged;                /* bytes for its code, from its first launch on */
	uint64_t duration;               /* from its name; 0: the general rule applies */
	bool takes_first_argument;       /* the first argument is the duration in ns */
	bool meets; /* the second and third arguments name a meeting and its size, see README.md */
	char name[];
};

void sim_module_drop_all(struct sim_context *context);
CUresult sim_module_load(struct sim_context *context, const void *data, size_t size, CUmodule *module);
CUresult sim_module_read_file(const char *path, char **data, size_t *size);
/* Under the lock. */
CUresult sim_module_function(struct sim_module *module, const char *name, CUfunction *function);
void sim_module_destroy(struct sim_module *module);
/* Takes the memory for the function's code, at its first launch. Under the lock. */
CUresult sim_function_load(struct sim_function *function);
/* Reads the duration from the function's name; see README.md. */
void sim_function_time(struct sim_function *function);

#endif

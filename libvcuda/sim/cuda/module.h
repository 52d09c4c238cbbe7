/*
 * The structures of modules and functions, for the files that load them, launch them or read their attributes. Loading
 * a module and finding its functions is in cuda/variable.h; the contents of an image are in cuda/image.h.
 */
#ifndef CUDA_MODULE_H
#define CUDA_MODULE_H

#include "cuda/image.h"
#include "cuda/work.h"

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
	uint64_t duration;               /* from its name; 0: the general rule applies */
	bool takes_first_argument;       /* the first argument is the duration in ns */
	bool meets;                      /* the second and third arguments name a meeting and its size, see README.md */
	char name[];
};

void sim_module_drop_all(struct sim_context *context);
/* Checks a launch and makes a work of it. */
CUresult sim_launch_prepare(const struct sim_launch *launch, void **arguments, struct sim_work *work);
/* Limits a kernel to its green context's part of the card, which makes it take longer. */
void sim_launch_restrict(struct sim_work *work, const struct sim_context *context);
/* Reads the duration from the function's name; see README.md. */
void sim_function_time(struct sim_function *function);

#endif

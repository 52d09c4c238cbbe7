#ifndef CUDA_MODULE_H
#define CUDA_MODULE_H

#include "cuda/image.h"
#include "cuda/work.h"

struct sim_module {
	struct sim_object object;
	struct sim_image image;
	uint64_t charged; /* for its code */
	struct sim_place_of_variable *variables;
};

struct sim_function {
	struct sim_object object;
	struct sim_module *module;
	const struct sim_kernel *kernel; /* what its image says of it */
	int settings[CU_FUNC_ATTRIBUTE_MAX];
	uint64_t duration;               /* by its name; 0: no rule but the general one */
	bool takes_first_argument;       /* its first argument says how long it takes, in ns */
	bool meets;                      /* its second and third say with how many others it meets, see README.md */
	char name[];
};

/* A texture or surface reference of this module? */
bool sim_reference_is_of(const struct sim_object *object, const struct sim_module *module);

/* Check a launch and make work of it. */
CUresult sim_launch_prepare(const struct sim_launch *launch, void **arguments, struct sim_work *work);
/* How long a kernel of this name takes: see README.md. */
void sim_function_time(struct sim_function *function);

#endif

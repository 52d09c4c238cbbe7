/*
 * The addresses of a module's variables.
 */
#ifndef CUDA_VARIABLE_H
#define CUDA_VARIABLE_H

#include "cuda/code/module.h"

/* The address of a module's variable. Its memory is allocated on first use. */
CUresult sim_variable_address(struct sim_module *module, const char *name, size_t bytes, CUdeviceptr *pointer);
void sim_variable_drop_all(struct sim_module *module); /* frees all of them; under the lock */

#endif

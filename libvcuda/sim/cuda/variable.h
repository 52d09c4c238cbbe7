/*
 * What cuda/module.c and cuda/variable.c offer to libraries (cuda/library.c) and to each other: loading a module,
 * finding its functions, and the addresses of its variables.
 */
#ifndef CUDA_VARIABLE_H
#define CUDA_VARIABLE_H

#include "cuda/module.h"

/* The address of a module's variable. Its memory is allocated on first use. */
CUresult sim_variable_address(struct sim_module *module, const char *name, size_t bytes, CUdeviceptr *pointer);
void sim_variable_drop_all(struct sim_module *module); /* frees all of them; under the lock */

CUresult sim_module_load(struct sim_context *context, const void *data, size_t size, CUmodule *module);
CUresult sim_module_read_file(const char *path, char **data, size_t *size);
/* Under the lock. */
CUresult sim_module_function(struct sim_module *module, const char *name, CUfunction *function);
void sim_module_destroy(struct sim_module *module);

#endif

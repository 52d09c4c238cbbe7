/* As much of PTX as tells whether a text is some, and which kernels it defines. */
#ifndef CUDA_PTX_H
#define CUDA_PTX_H

#include <stdbool.h>

bool sim_ptx_is(const char *text);
bool sim_ptx_has_entry(const char *text, const char *name);

#endif

/*
 * The size of a CUDA array: the bytes of its elements, computed from its descriptor.
 *
 * Belongs here: the arithmetic over element formats. The card's padding does not: it is unknown before the array
 * exists, and memory/context_overhead.h accounts for it afterwards.
 */
#ifndef VCUDA_ARRAY_SIZE_H
#define VCUDA_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda_abi.h"

/* In bytes; UINT64_MAX if they do not fit. `levels` is that of a mipmapped array, 0 for a plain one. */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

#endif

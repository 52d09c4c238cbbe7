/* What an array of a descriptor takes: its elements, without the card's padding. */
#ifndef VCUDA_ARRAY_SIZE_H
#define VCUDA_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda_abi.h"

/* Bytes; UINT64_MAX if they do not fit. `levels` of a mipmapped array, 0 for a plain one. */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

#endif

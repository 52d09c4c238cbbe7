/*
 * Where copies go. The card's multiprocessors make a copy within the card, so it takes the card's time as a launch
 * does. Copy engines make copies to and from the host and between cards, and leave the card's time free for others.
 *
 * Belongs here: how many bytes of a copy are of which kind. Not the hooked calls and their accounting (hooks/copy.c).
 */
#ifndef VCUDA_COPY_KIND_H
#define VCUDA_COPY_KIND_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct copy_kind {
	uint64_t within;  /* bytes that stay on the card */
	uint64_t outside; /* bytes that leave the card or come to it */
};

struct copy_kind copy_kind_bus(uint64_t size);
struct copy_kind copy_kind_card(uint64_t size);

/* For addresses of device memory. */
struct copy_kind copy_kind_devices(CUdeviceptr to, CUdeviceptr from, uint64_t size);

/* For addresses of any memory. */
struct copy_kind copy_kind_any(CUdeviceptr to, CUdeviceptr from, uint64_t size);
struct copy_kind copy_kind_any_list(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count);

/* For the driver's structures. NULL: 0 bytes, as the driver will refuse the call. */
struct copy_kind copy_kind_2d_v1(const CUDA_MEMCPY2D_v1 *copy);
struct copy_kind copy_kind_2d(const CUDA_MEMCPY2D *copy);
struct copy_kind copy_kind_3d_v1(const CUDA_MEMCPY3D_v1 *copy);
struct copy_kind copy_kind_3d(const CUDA_MEMCPY3D *copy);
struct copy_kind copy_kind_3d_peer(const CUDA_MEMCPY3D *copy);
struct copy_kind copy_kind_operands(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count);

#endif

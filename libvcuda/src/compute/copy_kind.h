/*
 * Where copies go. Within a card its multiprocessors do them, so they take the card's time as a launch does. To and from
 * the host, and between cards, engines of their own do, and the card's time stays free for others.
 */
#ifndef VCUDA_COPIES_H
#define VCUDA_COPIES_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct copy {
	uint64_t within;  /* bytes that stay on the card, */
	uint64_t outside; /* and that leave it or come to it */
};

struct copy copy_bus(uint64_t size);
struct copy copy_card(uint64_t size);

/* Of device memory; of memory that may be anybody's. */
struct copy copy_devices(CUdeviceptr to, CUdeviceptr from, uint64_t size);
struct copy copy_any(CUdeviceptr to, CUdeviceptr from, uint64_t size);
struct copy copy_any_list(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count);

/* What the structures say; NULL: nothing, the driver will complain. */
struct copy copy_2d_v1(const CUDA_MEMCPY2D_v1 *copy);
struct copy copy_2d(const CUDA_MEMCPY2D *copy);
struct copy copy_3d_v1(const CUDA_MEMCPY3D_v1 *copy);
struct copy copy_3d(const CUDA_MEMCPY3D *copy);
struct copy copy_3d_peer(const CUDA_MEMCPY3D *copy);
struct copy copy_operands(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count);

#endif

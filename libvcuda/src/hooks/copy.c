/*
 * The wrappers of libcuda.so.1 that copy. driver/cuda_table.h lists all wrappers; compute/copy_kind.h finds out what
 * kind a copy is.
 *
 * A copy within a card takes the card's time as a launch does, by its size. Any other copy takes none. It still
 * occupies its stream, which interrupts the stream's batch. A copy from or to the host without "Async" also waits for
 * the work before it.
 */
#include "compute/copy_kind.h"
#include "compute/launch.h"
#include "driver/cuda_table.h"

struct call {
	struct compute_launch launch;
	bool has_waited;
};

/* Used where nothing is limited, so that the kind of a copy is not looked up. */
static const struct copy_kind unknown;

static void begin_copy(struct call *call, const void *symbol, struct copy_kind copy, bool waits, CUstream stream,
		       enum stream_meaning meaning)
{
	bool interrupts = copy.outside && compute_launch_interrupt(stream, meaning, false, copy.outside);

	call->has_waited = interrupts && waits && !copy.within;
	call->launch.entered = false;
	if (copy.within)
		compute_launch_begin(&call->launch, symbol, copy.within, stream, meaning);
	call->launch.launch.may_wait = waits;
}

static CUresult end_copy(struct call *call, CUstream stream, enum stream_meaning meaning, CUresult result)
{
	if (call->has_waited)
		compute_launch_waited(stream, meaning);
	return compute_launch_end(&call->launch, result);
}

#define COPY(symbol, copy, waits, stream, meaning, parameters, ...) \
	EXPORT CUresult symbol parameters \
	{ \
		struct call call; \
		begin_copy(&call, (const void *)symbol, compute_launch_is_limited() ? (copy) : unknown, waits, stream, \
			   meaning); \
		return end_copy(&call, stream, meaning, REAL(symbol, __VA_ARGS__)); \
	}

#define SYNC(symbol, copy, parameters, ...) COPY(symbol, copy, true, NULL, STREAM_LEGACY, parameters, __VA_ARGS__)
#define SYNC_PTDS(symbol, copy, parameters, ...) \
	COPY(symbol, copy, true, NULL, STREAM_PER_THREAD, parameters, __VA_ARGS__)
#define ASYNC(symbol, copy, parameters, ...) \
	COPY(symbol, copy, false, stream, STREAM_LEGACY, parameters, __VA_ARGS__, stream)
#define ASYNC_PTSZ(symbol, copy, parameters, ...) \
	COPY(symbol, copy, false, stream, STREAM_PER_THREAD, parameters, __VA_ARGS__, stream)

/* The parameters of a function and its variants. Those of the first CUDA have numbers of 32 bits. */
#define POINTERS (CUdeviceptr to, CUdeviceptr from, size_t size)
#define POINTERS_INTO (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
#define POINTERS_V1 (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size)
#define POINTERS_V1_INTO (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size, CUstream stream)

SYNC(cuMemcpy, copy_kind_any(to, from, size), POINTERS, to, from, size)
SYNC_PTDS(cuMemcpy_ptds, copy_kind_any(to, from, size), POINTERS, to, from, size)
ASYNC(cuMemcpyAsync, copy_kind_any(to, from, size), POINTERS_INTO, to, from, size)
ASYNC_PTSZ(cuMemcpyAsync_ptsz, copy_kind_any(to, from, size), POINTERS_INTO, to, from, size)

SYNC(cuMemcpyDtoD, copy_kind_devices(to, from, size), POINTERS_V1, to, from, size)
SYNC(cuMemcpyDtoD_v2, copy_kind_devices(to, from, size), POINTERS, to, from, size)
SYNC_PTDS(cuMemcpyDtoD_v2_ptds, copy_kind_devices(to, from, size), POINTERS, to, from, size)
ASYNC(cuMemcpyDtoDAsync, copy_kind_devices(to, from, size), POINTERS_V1_INTO, to, from, size)
ASYNC(cuMemcpyDtoDAsync_v2, copy_kind_devices(to, from, size), POINTERS_INTO, to, from, size)
ASYNC_PTSZ(cuMemcpyDtoDAsync_v2_ptsz, copy_kind_devices(to, from, size), POINTERS_INTO, to, from, size)

/* ---- from and to the host ---- */

#define TO_CARD (CUdeviceptr to, const void *from, size_t size)
#define TO_CARD_INTO (CUdeviceptr to, const void *from, size_t size, CUstream stream)
#define FROM_CARD (void *to, CUdeviceptr from, size_t size)
#define FROM_CARD_INTO (void *to, CUdeviceptr from, size_t size, CUstream stream)

SYNC(cuMemcpyHtoD, copy_kind_bus(size), (CUdeviceptr_v1 to, const void *from, unsigned int size), to, from, size)
SYNC(cuMemcpyHtoD_v2, copy_kind_bus(size), TO_CARD, to, from, size)
SYNC_PTDS(cuMemcpyHtoD_v2_ptds, copy_kind_bus(size), TO_CARD, to, from, size)
ASYNC(cuMemcpyHtoDAsync, copy_kind_bus(size), (CUdeviceptr_v1 to, const void *from, unsigned int size, CUstream stream),
      to, from, size)
ASYNC(cuMemcpyHtoDAsync_v2, copy_kind_bus(size), TO_CARD_INTO, to, from, size)
ASYNC_PTSZ(cuMemcpyHtoDAsync_v2_ptsz, copy_kind_bus(size), TO_CARD_INTO, to, from, size)
SYNC(cuMemcpyDtoH, copy_kind_bus(size), (void *to, CUdeviceptr_v1 from, unsigned int size), to, from, size)
SYNC(cuMemcpyDtoH_v2, copy_kind_bus(size), FROM_CARD, to, from, size)
SYNC_PTDS(cuMemcpyDtoH_v2_ptds, copy_kind_bus(size), FROM_CARD, to, from, size)
ASYNC(cuMemcpyDtoHAsync, copy_kind_bus(size), (void *to, CUdeviceptr_v1 from, unsigned int size, CUstream stream), to,
      from, size)
ASYNC(cuMemcpyDtoHAsync_v2, copy_kind_bus(size), FROM_CARD_INTO, to, from, size)
ASYNC_PTSZ(cuMemcpyDtoHAsync_v2_ptsz, copy_kind_bus(size), FROM_CARD_INTO, to, from, size)

/* ---- between two cards, or contexts that a program takes for two cards ---- */

#define PEERS CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size

SYNC(cuMemcpyPeer, copy_kind_devices(to, from, size), (PEERS), to, to_context, from, from_context, size)
SYNC_PTDS(cuMemcpyPeer_ptds, copy_kind_devices(to, from, size), (PEERS), to, to_context, from, from_context, size)
ASYNC(cuMemcpyPeerAsync, copy_kind_devices(to, from, size), (PEERS, CUstream stream), to, to_context, from,
      from_context, size)
ASYNC_PTSZ(cuMemcpyPeerAsync_ptsz, copy_kind_devices(to, from, size), (PEERS, CUstream stream), to, to_context, from,
	   from_context, size)

/* ---- arrays ---- */

#define INTO_ARRAY CUarray to, size_t offset
#define INTO_ARRAY_V1 CUarray to, unsigned int offset
#define OF_ARRAY CUarray from, size_t offset
#define OF_ARRAY_V1 CUarray from, unsigned int offset
#define ARRAYS CUarray to, size_t to_offset, CUarray from, size_t from_offset
#define ARRAYS_V1 CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset

SYNC(cuMemcpyDtoA, copy_kind_card(size), (INTO_ARRAY_V1, CUdeviceptr_v1 from, unsigned int size), to, offset, from,
     size)
SYNC(cuMemcpyDtoA_v2, copy_kind_card(size), (INTO_ARRAY, CUdeviceptr from, size_t size), to, offset, from, size)
SYNC_PTDS(cuMemcpyDtoA_v2_ptds, copy_kind_card(size), (INTO_ARRAY, CUdeviceptr from, size_t size), to, offset, from,
	  size)
SYNC(cuMemcpyAtoD, copy_kind_card(size), (CUdeviceptr_v1 to, OF_ARRAY_V1, unsigned int size), to, from, offset, size)
SYNC(cuMemcpyAtoD_v2, copy_kind_card(size), (CUdeviceptr to, OF_ARRAY, size_t size), to, from, offset, size)
SYNC_PTDS(cuMemcpyAtoD_v2_ptds, copy_kind_card(size), (CUdeviceptr to, OF_ARRAY, size_t size), to, from, offset, size)
SYNC(cuMemcpyAtoA, copy_kind_card(size), (ARRAYS_V1, unsigned int size), to, to_offset, from, from_offset, size)
SYNC(cuMemcpyAtoA_v2, copy_kind_card(size), (ARRAYS, size_t size), to, to_offset, from, from_offset, size)
SYNC_PTDS(cuMemcpyAtoA_v2_ptds, copy_kind_card(size), (ARRAYS, size_t size), to, to_offset, from, from_offset, size)
SYNC(cuMemcpyHtoA, copy_kind_bus(size), (INTO_ARRAY_V1, const void *from, unsigned int size), to, offset, from, size)
SYNC(cuMemcpyHtoA_v2, copy_kind_bus(size), (INTO_ARRAY, const void *from, size_t size), to, offset, from, size)
SYNC_PTDS(cuMemcpyHtoA_v2_ptds, copy_kind_bus(size), (INTO_ARRAY, const void *from, size_t size), to, offset, from,
	  size)
SYNC(cuMemcpyAtoH, copy_kind_bus(size), (void *to, OF_ARRAY_V1, unsigned int size), to, from, offset, size)
SYNC(cuMemcpyAtoH_v2, copy_kind_bus(size), (void *to, OF_ARRAY, size_t size), to, from, offset, size)
SYNC_PTDS(cuMemcpyAtoH_v2_ptds, copy_kind_bus(size), (void *to, OF_ARRAY, size_t size), to, from, offset, size)
ASYNC(cuMemcpyHtoAAsync, copy_kind_bus(size), (INTO_ARRAY_V1, const void *from, unsigned int size, CUstream stream), to,
      offset, from, size)
ASYNC(cuMemcpyHtoAAsync_v2, copy_kind_bus(size), (INTO_ARRAY, const void *from, size_t size, CUstream stream), to,
      offset, from, size)
ASYNC_PTSZ(cuMemcpyHtoAAsync_v2_ptsz, copy_kind_bus(size), (INTO_ARRAY, const void *from, size_t size, CUstream stream),
	   to, offset, from, size)
ASYNC(cuMemcpyAtoHAsync, copy_kind_bus(size), (void *to, OF_ARRAY_V1, unsigned int size, CUstream stream), to, from,
      offset, size)
ASYNC(cuMemcpyAtoHAsync_v2, copy_kind_bus(size), (void *to, OF_ARRAY, size_t size, CUstream stream), to, from, offset,
      size)
ASYNC_PTSZ(cuMemcpyAtoHAsync_v2_ptsz, copy_kind_bus(size), (void *to, OF_ARRAY, size_t size, CUstream stream), to, from,
	   offset, size)

/* ---- two and three dimensions ---- */

SYNC(cuMemcpy2D, copy_kind_2d_v1(copy), (const CUDA_MEMCPY2D_v1 *copy), copy)
SYNC(cuMemcpy2D_v2, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy), copy)
SYNC_PTDS(cuMemcpy2D_v2_ptds, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy), copy)
SYNC(cuMemcpy2DUnaligned, copy_kind_2d_v1(copy), (const CUDA_MEMCPY2D_v1 *copy), copy)
SYNC(cuMemcpy2DUnaligned_v2, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy), copy)
SYNC_PTDS(cuMemcpy2DUnaligned_v2_ptds, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy), copy)
ASYNC(cuMemcpy2DAsync, copy_kind_2d_v1(copy), (const CUDA_MEMCPY2D_v1 *copy, CUstream stream), copy)
ASYNC(cuMemcpy2DAsync_v2, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy, CUstream stream), copy)
ASYNC_PTSZ(cuMemcpy2DAsync_v2_ptsz, copy_kind_2d(copy), (const CUDA_MEMCPY2D *copy, CUstream stream), copy)
SYNC(cuMemcpy3D, copy_kind_3d_v1(copy), (const CUDA_MEMCPY3D_v1 *copy), copy)
SYNC(cuMemcpy3D_v2, copy_kind_3d(copy), (const CUDA_MEMCPY3D *copy), copy)
SYNC_PTDS(cuMemcpy3D_v2_ptds, copy_kind_3d(copy), (const CUDA_MEMCPY3D *copy), copy)
ASYNC(cuMemcpy3DAsync, copy_kind_3d_v1(copy), (const CUDA_MEMCPY3D_v1 *copy, CUstream stream), copy)
ASYNC(cuMemcpy3DAsync_v2, copy_kind_3d(copy), (const CUDA_MEMCPY3D *copy, CUstream stream), copy)
ASYNC_PTSZ(cuMemcpy3DAsync_v2_ptsz, copy_kind_3d(copy), (const CUDA_MEMCPY3D *copy, CUstream stream), copy)
SYNC(cuMemcpy3DPeer, copy_kind_3d_peer(copy), (const CUDA_MEMCPY3D *copy), copy)
SYNC_PTDS(cuMemcpy3DPeer_ptds, copy_kind_3d_peer(copy), (const CUDA_MEMCPY3D *copy), copy)
ASYNC(cuMemcpy3DPeerAsync, copy_kind_3d_peer(copy), (const CUDA_MEMCPY3D *copy, CUstream stream), copy)
ASYNC_PTSZ(cuMemcpy3DPeerAsync_ptsz, copy_kind_3d_peer(copy), (const CUDA_MEMCPY3D *copy, CUstream stream), copy)

/* ---- many copies at once: one launch if some of them stay on the card ---- */

#define LISTS \
	CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *indices, \
		size_t attribute_count
#define LISTED to, from, sizes, count, attributes, indices, attribute_count
#define BOXES size_t count, CUDA_MEMCPY3D_BATCH_OP *list
#define FLAGS unsigned long long flags

ASYNC(cuMemcpyBatchAsync, copy_kind_any_list(to, from, sizes, count), (LISTS, size_t *failed, CUstream stream), LISTED,
      failed)
ASYNC_PTSZ(cuMemcpyBatchAsync_ptsz, copy_kind_any_list(to, from, sizes, count),
	   (LISTS, size_t *failed, CUstream stream), LISTED, failed)
ASYNC(cuMemcpyBatchAsync_v2, copy_kind_any_list(to, from, sizes, count), (LISTS, CUstream stream), LISTED)
ASYNC_PTSZ(cuMemcpyBatchAsync_v2_ptsz, copy_kind_any_list(to, from, sizes, count), (LISTS, CUstream stream), LISTED)
ASYNC(cuMemcpy3DBatchAsync, copy_kind_operands(list, count), (BOXES, size_t *failed, FLAGS, CUstream stream), count,
      list, failed, flags)
ASYNC_PTSZ(cuMemcpy3DBatchAsync_ptsz, copy_kind_operands(list, count), (BOXES, size_t *failed, FLAGS, CUstream stream),
	   count, list, failed, flags)
ASYNC(cuMemcpy3DBatchAsync_v2, copy_kind_operands(list, count), (BOXES, FLAGS, CUstream stream), count, list, flags)
ASYNC_PTSZ(cuMemcpy3DBatchAsync_v2_ptsz, copy_kind_operands(list, count), (BOXES, FLAGS, CUstream stream), count, list,
	   flags)
ASYNC(cuMemcpyWithAttributesAsync, copy_kind_any(to, from, size),
      (CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream), to, from, size, attributes)
ASYNC_PTSZ(cuMemcpyWithAttributesAsync_ptsz, copy_kind_any(to, from, size),
	   (CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream), to, from, size,
	   attributes)
ASYNC(cuMemcpy3DWithAttributesAsync, copy_kind_operands(copy, 1),
      (CUDA_MEMCPY3D_BATCH_OP * copy, FLAGS, CUstream stream), copy, flags)
ASYNC_PTSZ(cuMemcpy3DWithAttributesAsync_ptsz, copy_kind_operands(copy, 1),
	   (CUDA_MEMCPY3D_BATCH_OP * copy, FLAGS, CUstream stream), copy, flags)

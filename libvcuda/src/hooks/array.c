/*
 * The wrappers of libcuda.so.1 for arrays and mipmapped arrays. driver/cuda_table.h lists all wrappers.
 *
 * No call returns what an array takes, neither before nor after it exists. libvcuda charges the bytes of its elements,
 * with all channels, layers and levels (memory/array_size.h). The card's padding is charged as overhead, from NVML's
 * figure for the process (memory/context_overhead.h). An array whose memory is mapped later takes none.
 */
#include "base/log.h"
#include "driver/cuda_table.h"
#include "memory/array_size.h"
#include "memory/charge.h"
#include "shared/guard.h"

static CUresult begin_array(struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
	CUresult result = charge_begin(charge, array_size(descriptor, levels));

	charge->kind = levels ? ALLOCATED_MIPMAP : ALLOCATED_ARRAY;
	return result;
}

static CUresult end_array(struct charge *charge, CUresult result, void *const *handle)
{
	if (charge_has_no_fallback(charge, result))
		log_once(LOG_ERROR, "the card is full, and managed memory cannot replace arrays");
	return charge_end(charge, result, result == CUDA_SUCCESS ? (uintptr_t)*handle : 0);
}

#define FLAT(of) .width = (of)->width, .height = (of)->height, .format = (of)->format, .channels = (of)->channels
#define DEEP(of) FLAT(of), .depth = (of)->depth, .flags = (of)->flags

/* The body of a wrapper. The last argument is what `descriptor` says, as members of the widest descriptor. */
#define CREATE(handle, descriptor, levels, call, ...) \
	CUDA_ARRAY3D_DESCRIPTOR wide = {0}; \
	struct charge charge; \
	if (descriptor) \
		wide = (CUDA_ARRAY3D_DESCRIPTOR){__VA_ARGS__}; \
	CUresult result = begin_array(&charge, &wide, levels); \
	return result == CUDA_SUCCESS ? end_array(&charge, call, (void **)(handle)) : result

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
	CREATE(array, descriptor, 0, REAL(cuArrayCreate, array, descriptor), FLAT(descriptor));
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	CREATE(array, descriptor, 0, REAL(cuArrayCreate_v2, array, descriptor), FLAT(descriptor));
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
	CREATE(array, descriptor, 0, REAL(cuArray3DCreate, array, descriptor), DEEP(descriptor));
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	CREATE(array, descriptor, 0, REAL(cuArray3DCreate_v2, array, descriptor), DEEP(descriptor));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
				       unsigned int levels)
{
	CREATE(mipmap, descriptor, levels ? levels : 1, REAL(cuMipmappedArrayCreate, mipmap, descriptor, levels),
	       DEEP(descriptor));
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
	struct allocation *entry = charge_take(ALLOCATED_ARRAY, (uintptr_t)array);

	return charge_give_back(entry, GUARDED(REAL(cuArrayDestroy, array)));
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	struct allocation *entry = charge_take(ALLOCATED_MIPMAP, (uintptr_t)mipmap);

	return charge_give_back(entry, GUARDED(REAL(cuMipmappedArrayDestroy, mipmap)));
}

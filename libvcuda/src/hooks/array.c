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
	uint64_t size = descriptor ? array_size(descriptor, levels) : 0;
	CUresult result = charge_begin(charge, size);

	charge->kind = levels ? ALLOCATED_MIPMAP : ALLOCATED_ARRAY;
	return result;
}

static CUresult end_array(struct charge *charge, CUresult result, void *const *handle)
{
	if (charge_has_no_fallback(charge, result))
		log_once(LOG_ERROR, "the card is full, and managed memory cannot replace arrays");
	return charge_end(charge, result, result == CUDA_SUCCESS ? (uintptr_t)*handle : 0);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
	struct charge charge;
	CUDA_ARRAY3D_DESCRIPTOR wide = {0};

	if (descriptor)
		wide = (CUDA_ARRAY3D_DESCRIPTOR){.width = descriptor->width, .height = descriptor->height,
						 .format = descriptor->format, .channels = descriptor->channels};
	CUresult result = begin_array(&charge, &wide, 0);
	return result == CUDA_SUCCESS ? end_array(&charge, REAL(cuArrayCreate, array, descriptor), (void **)array)
				      : result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	struct charge charge;
	CUDA_ARRAY3D_DESCRIPTOR wide = {0};

	if (descriptor)
		wide = (CUDA_ARRAY3D_DESCRIPTOR){.width = descriptor->width, .height = descriptor->height,
						 .format = descriptor->format, .channels = descriptor->channels};
	CUresult result = begin_array(&charge, &wide, 0);
	return result == CUDA_SUCCESS ? end_array(&charge, REAL(cuArrayCreate_v2, array, descriptor), (void **)array)
				      : result;
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
	struct charge charge;
	CUDA_ARRAY3D_DESCRIPTOR wide = {0};

	if (descriptor)
		wide = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->width, descriptor->height, descriptor->depth,
						 descriptor->format, descriptor->channels, descriptor->flags};
	CUresult result = begin_array(&charge, &wide, 0);
	return result == CUDA_SUCCESS ? end_array(&charge, REAL(cuArray3DCreate, array, descriptor), (void **)array)
				      : result;
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	struct charge charge;
	CUresult result = begin_array(&charge, descriptor, 0);

	return result == CUDA_SUCCESS ? end_array(&charge, REAL(cuArray3DCreate_v2, array, descriptor), (void **)array)
				      : result;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
				       unsigned int levels)
{
	struct charge charge;
	CUresult result = begin_array(&charge, descriptor, levels ? levels : 1);

	return result == CUDA_SUCCESS
		       ? end_array(&charge, REAL(cuMipmappedArrayCreate, mipmap, descriptor, levels), (void **)mipmap)
		       : result;
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

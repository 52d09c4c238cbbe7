/*
 * Arrays and mipmapped arrays. Their storage is an ordinary allocation whose address no program gets. The rows follow
 * one another without gaps, so the charge is the size in the descriptor, rounded like every allocation. Copies from and
 * to arrays are in cuda/work/copy_call.c; textures that read them in cuda/memory/texture.c.
 */
#include <string.h>

#include "cuda/memory/array.h"

#define ARRAY_CUBEMAP 0x04u
#define ARRAY_LAYERED 0x01u
#define ARRAY_SPARSE 0x40u
#define MAX_EXTENT 131072u

static unsigned format_bytes(int format)
{
	switch (format) {
	case 0x01:
	case 0x08: return 1;
	case 0x02:
	case 0x09:
	case 0x10: return 2;
	case 0x03:
	case 0x0a:
	case 0x20: return 4;
	default: return 0;
	}
}

static bool is_sane(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return descriptor->Width && descriptor->Width <= MAX_EXTENT && descriptor->Height <= MAX_EXTENT &&
	       descriptor->Depth <= MAX_EXTENT && format_bytes(descriptor->Format) &&
	       (descriptor->NumChannels == 1 || descriptor->NumChannels == 2 || descriptor->NumChannels == 4);
}

static size_t row_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return descriptor->Width * descriptor->NumChannels * format_bytes(descriptor->Format);
}

static size_t at_least_one(size_t extent)
{
	return extent ? extent : 1;
}

/* Extents are at most 2^17 each, elements at most 2^4 bytes: no overflow. */
static size_t storage(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	return row_bytes(descriptor) * at_least_one(descriptor->Height) * at_least_one(descriptor->Depth);
}

static CUresult create_storage(struct sim_context *context, size_t bytes, CUdeviceptr *base)
{
	struct sim_allocation *allocation;

	TRY(sim_allocation_new(context, NULL, SIM_ARRAY_MEMORY, bytes, &allocation));
	*base = allocation->base;
	return CUDA_SUCCESS;
}

/* Called under the lock. */
static struct sim_array *new_array(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
				   CUdeviceptr base, struct sim_mipmap *parent)
{
	struct sim_array *array = sim_object_create(sizeof *array, SIM_ARRAY, context);

	if (!array)
		return NULL;
	array->descriptor = *descriptor;
	array->base = base;
	array->pitch = row_bytes(descriptor);
	array->rows = at_least_one(descriptor->Height);
	array->parent = parent;
	return array;
}

SIM_EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	struct sim_context *context;
	CUdeviceptr base = 0;

	TRY(sim_context_current(&context));
	REJECT(!array || !descriptor || !is_sane(descriptor));
	if (!(descriptor->Flags & ARRAY_SPARSE))
		TRY(create_storage(context, storage(descriptor), &base));
	pthread_mutex_lock(&sim_driver.lock);
	*array = new_array(context, descriptor, base, NULL);
	pthread_mutex_unlock(&sim_driver.lock);
	if (*array)
		return CUDA_SUCCESS;
	sim_allocation_free_pointer(base, SIM_FREE_ARRAY);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	REJECT(!descriptor);
	CUDA_ARRAY3D_DESCRIPTOR full = {
		.Width = descriptor->Width,
		.Height = descriptor->Height,
		.Format = descriptor->Format,
		.NumChannels = descriptor->NumChannels,
	};
	return cuArray3DCreate_v2(array, &full);
}

SIM_EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
	TRY(descriptor ? sim_object_lock(array, SIM_ARRAY) : CUDA_ERROR_INVALID_VALUE);
	*descriptor = array->descriptor;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	TRY(descriptor ? cuArray3DGetDescriptor_v2(&full, array) : CUDA_ERROR_INVALID_VALUE);
	*descriptor = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuArrayDestroy(CUarray array)
{
	TRY(sim_object_lock(array, SIM_ARRAY));
	CUdeviceptr base = array->base;
	sim_sparse_drop_tiles(&array->tiles);
	bool is_level = array->parent != NULL;
	if (!is_level)
		sim_object_destroy(array);
	pthread_mutex_unlock(&sim_driver.lock);
	if (is_level)
		return CUDA_ERROR_INVALID_HANDLE;
	return base ? sim_allocation_free_pointer(base, SIM_FREE_ARRAY) : CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level)
{
	CUDA_ARRAY3D_DESCRIPTOR smaller = *descriptor;

	smaller.Width = at_least_one(descriptor->Width >> level);
	smaller.Height = descriptor->Height ? at_least_one(descriptor->Height >> level) : 0;
	if (descriptor->Depth && !(descriptor->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)))
		smaller.Depth = at_least_one(descriptor->Depth >> level);
	return smaller;
}

/* The largest possible number of levels, down to one element. */
static unsigned level_limit(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	size_t longest = descriptor->Width > descriptor->Height ? descriptor->Width : descriptor->Height;
	unsigned levels = 1;

	if (descriptor->Depth > longest && !(descriptor->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)))
		longest = descriptor->Depth;
	while (longest >>= 1)
		levels++;
	return levels;
}

static size_t offset_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned level)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < level; i++) {
		CUDA_ARRAY3D_DESCRIPTOR smaller = level_of(descriptor, i);
		bytes += storage(&smaller);
	}
	return bytes;
}

SIM_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
					   unsigned levels)
{
	struct sim_context *context;
	CUdeviceptr base = 0;

	TRY(sim_context_current(&context));
	REJECT(!mipmap || !descriptor || !is_sane(descriptor) || !levels);
	if (levels > level_limit(descriptor))
		levels = level_limit(descriptor);
	if (!(descriptor->Flags & ARRAY_SPARSE))
		TRY(create_storage(context, offset_of(descriptor, levels), &base));
	pthread_mutex_lock(&sim_driver.lock);
	*mipmap = sim_object_create(sizeof **mipmap, SIM_MIPMAP, context);
	if (*mipmap) {
		(*mipmap)->descriptor = *descriptor;
		(*mipmap)->base = base;
		(*mipmap)->count = levels;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (*mipmap)
		return CUDA_SUCCESS;
	sim_allocation_free_pointer(base, SIM_FREE_ARRAY);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned level)
{
	TRY(array ? sim_object_lock(mipmap, SIM_MIPMAP) : CUDA_ERROR_INVALID_VALUE);
	if (level < mipmap->count && !mipmap->levels[level]) {
		CUDA_ARRAY3D_DESCRIPTOR smaller = level_of(&mipmap->descriptor, level);
		mipmap->levels[level] = new_array(mipmap->object.context, &smaller,
						  mipmap->base + offset_of(&mipmap->descriptor, level), mipmap);
	}
	*array = level < mipmap->count ? mipmap->levels[level] : NULL;
	pthread_mutex_unlock(&sim_driver.lock);
	if (*array)
		return CUDA_SUCCESS;
	return level < mipmap->count ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	TRY(sim_object_lock(mipmap, SIM_MIPMAP));
	CUdeviceptr base = mipmap->base;
	sim_sparse_drop_tiles(&mipmap->tiles);
	for (unsigned i = 0; i < mipmap->count; i++)
		if (mipmap->levels[i])
			sim_object_destroy(mipmap->levels[i]);
	sim_object_destroy(mipmap);
	pthread_mutex_unlock(&sim_driver.lock);
	return base ? sim_allocation_free_pointer(base, SIM_FREE_ARRAY) : CUDA_SUCCESS;
}

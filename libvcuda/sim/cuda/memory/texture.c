/*
 * Texture and surface objects. They are checked and kept; no kernel reads through them. Arrays are in
 * cuda/memory/array.c.
 */
#include "cuda/memory/array.h"

enum { RESOURCE_ARRAY, RESOURCE_MIPMAP, RESOURCE_LINEAR, RESOURCE_PITCHED };

typedef struct {
	int type;
	union {
		CUarray array;
		CUmipmappedArray mipmap;
		struct {
			CUdeviceptr pointer;
			int format;
			unsigned channels;
			size_t bytes; /* of a pitched one: width, height and pitch */
			size_t height, pitch;
		} linear;
		int reserved[32];
	};
	unsigned flags;
} CUDA_RESOURCE_DESC;

_Static_assert(sizeof(CUDA_RESOURCE_DESC) == 144, "CUDA_RESOURCE_DESC");

typedef struct sim_texture *CUtexObject; /* a 64-bit integer for the program, like the next type */
typedef struct sim_texture *CUsurfObject;

struct sim_texture {
	struct sim_object object;
	CUDA_RESOURCE_DESC resource;
};

static unsigned element_size(int format)
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

/* Under the lock. */
static bool check_linear(const CUDA_RESOURCE_DESC *resource)
{
	size_t bytes = resource->linear.bytes,
	       element = element_size(resource->linear.format) * resource->linear.channels;

	if (!element || resource->linear.channels == 3 || resource->linear.channels > 4)
		return false;
	if (resource->type == RESOURCE_PITCHED) {
		if (resource->linear.pitch < bytes * element || resource->linear.pitch % 32 || !resource->linear.height)
			return false;
		bytes = (resource->linear.height - 1) * resource->linear.pitch + bytes * element;
	}
	return bytes && sim_allocation_at(resource->linear.pointer, bytes);
}

static bool check_resource(const CUDA_RESOURCE_DESC *resource)
{
	if (resource->flags)
		return false;
	switch (resource->type) {
	case RESOURCE_ARRAY: return sim_object_is(resource->array, SIM_ARRAY);
	case RESOURCE_MIPMAP: return sim_object_is(resource->mipmap, SIM_MIPMAP);
	case RESOURCE_LINEAR:
	case RESOURCE_PITCHED: return check_linear(resource);
	default: return false;
	}
}

static CUresult create_texture(struct sim_texture **out, enum sim_kind kind, const CUDA_RESOURCE_DESC *resource)
{
	struct sim_context *context;
	CUresult result = sim_context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	REJECT(!out || !resource);
	pthread_mutex_lock(&sim_driver.lock);
	if (!check_resource(resource))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!(*out = sim_object_create(sizeof **out, kind, context)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		(*out)->resource = *resource;
	return sim_object_unlock(result);
}

/* How a kernel would read through it makes no difference. */
SIM_EXPORT CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const void *texture,
				      const void *view)
{
	(void)view;
	return texture ? create_texture(out, SIM_TEXTURE, resource) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult lock_texture(const void *out, const struct sim_texture *texture, enum sim_kind kind)
{
	CUresult result = out ? sim_object_lock(texture, kind) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

static CUresult destroy(struct sim_texture *texture, enum sim_kind kind)
{
	TRY(lock_texture(texture, texture, kind));
	sim_object_destroy(texture);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexObjectDestroy(CUtexObject texture)
{
	return destroy(texture, SIM_TEXTURE);
}

SIM_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject texture)
{
	TRY(lock_texture(out, texture, SIM_TEXTURE));
	*out = texture->resource;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
	return resource && resource->type != RESOURCE_ARRAY ? CUDA_ERROR_INVALID_VALUE
							    : create_texture(out, SIM_SURFACE, resource);
}

SIM_EXPORT CUresult cuSurfObjectDestroy(CUsurfObject surface)
{
	return destroy(surface, SIM_SURFACE);
}

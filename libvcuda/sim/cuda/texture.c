/*
 * Texture and surface objects. They are checked and kept; no kernel reads through them. Arrays are in
 * cuda/array.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/array.h"

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

typedef struct {
	int address_mode[3], filter_mode;
	unsigned flags, anisotropy;
	int mipmap_filter_mode;
	float bias, least, most, border[4];
	int reserved[12];
} CUDA_TEXTURE_DESC;

typedef struct {
	int format;
	size_t width, height, depth;
	unsigned first_level, last_level, first_layer, last_layer, reserved[16];
} CUDA_RESOURCE_VIEW_DESC;

_Static_assert(sizeof(CUDA_RESOURCE_DESC) == 144 && sizeof(CUDA_TEXTURE_DESC) == 104 &&
               sizeof(CUDA_RESOURCE_VIEW_DESC) == 112, "CUDA's structures");

typedef struct sim_texture *CUtexObject; /* a 64-bit integer for the program, like the next type */
typedef struct sim_texture *CUsurfObject;

struct sim_texture {
	struct sim_object object;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

static unsigned element_size(int format)
{
	switch (format) {
	case 0x01: case 0x08: return 1;
	case 0x02: case 0x09: case 0x10: return 2;
	case 0x03: case 0x0a: case 0x20: return 4;
	default: return 0;
	}
}

/* Under the lock. */
static bool check_linear(const CUDA_RESOURCE_DESC *resource)
{
	size_t bytes = resource->linear.bytes, element = element_size(resource->linear.format) * resource->linear.channels;

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
	case RESOURCE_LINEAR: case RESOURCE_PITCHED: return check_linear(resource);
	default: return false;
	}
}

static CUresult create_texture(struct sim_texture **out, enum sim_kind kind, const CUDA_RESOURCE_DESC *resource)
{
	struct sim_context *context;
	CUresult result = sim_context_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !resource)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sim_driver.lock);
	if (!check_resource(resource))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (!(*out = sim_object_create(sizeof **out, kind, context)))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	else
		(*out)->resource = *resource;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
                                      const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
	TRY(texture ? create_texture(out, SIM_TEXTURE, resource) : CUDA_ERROR_INVALID_VALUE);
	(*out)->texture = *texture;
	(*out)->has_view = view != NULL;
	if (view)
		(*out)->view = *view;
	return CUDA_SUCCESS;
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

/* Stores `part` of the texture. */
static CUresult give_part(void *out, const struct sim_texture *texture, enum sim_kind kind, const void *part,
                          size_t bytes)
{
	TRY(lock_texture(out, texture, kind));
	memcpy(out, part, bytes);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexObjectDestroy(CUtexObject texture)
{
	return destroy(texture, SIM_TEXTURE);
}

SIM_EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject texture)
{
	return give_part(out, texture, SIM_TEXTURE, &texture->resource, sizeof *out);
}

SIM_EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject texture)
{
	return give_part(out, texture, SIM_TEXTURE, &texture->texture, sizeof *out);
}

SIM_EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject texture)
{
	CUresult result = lock_texture(out, texture, SIM_TEXTURE);

	if (result != CUDA_SUCCESS)
		return result;
	if (texture->has_view)
		*out = texture->view;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
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

SIM_EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject surface)
{
	return give_part(out, surface, SIM_SURFACE, &surface->resource, sizeof *out);
}

SIM_EXPORT CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels, CUdevice device)
{
	TRY(sim_device(device));
	if (!width || !element_size(format) || !channels || channels > 4)
		return CUDA_ERROR_INVALID_VALUE;
	*width = (size_t)268435456 / channels;
	return CUDA_SUCCESS;
}

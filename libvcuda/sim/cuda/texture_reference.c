/*
 * Texture and surface references, the interface before texture objects: a module's reference, found by name, or one
 * that the program makes. Their settings are checked and kept; no kernel reads through them. They cost no memory on the
 * card.
 */
#include <string.h>

#include "cuda/array.h"
#include "cuda/module.h"

enum { ADDRESS_MODES = 4, OVERRIDE_FORMAT = 1, ALL_FLAGS = 0x17, ALIGNMENT = 512 };

typedef struct sim_texture_reference *CUtexref;
typedef struct sim_surface_reference *CUsurfref;

struct sim_texture_reference {
	struct sim_object object;
	struct sim_module *module; /* NULL: made by the program */
	CUdeviceptr pointer;       /* at most one of pointer, array and mipmap is bound */
	CUarray array;
	CUmipmappedArray mipmap;
	int format, channels, address_modes[3], filter, mipmap_filter, anisotropy;
	unsigned flags;
	float bias, least, most, border[4];
	char name[];
};

struct sim_surface_reference {
	struct sim_object object;
	struct sim_module *module;
	CUarray array;
	char name[];
};

static CUresult lock(const void *handle, enum sim_kind kind, bool sound)
{
	CUresult result = sound ? sim_object_lock(handle, kind) : CUDA_ERROR_INVALID_VALUE;

	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

bool sim_texture_reference_is_of(const struct sim_object *object, const struct sim_module *module)
{
	return (object->kind == SIM_TEXTURE_REFERENCE && ((const struct sim_texture_reference *)object)->module == module) ||
	       (object->kind == SIM_SURFACE_REFERENCE && ((const struct sim_surface_reference *)object)->module == module);
}

/* In both kinds the name follows the structure. */
static const char *name_of(const struct sim_object *object)
{
	return object->kind == SIM_TEXTURE_REFERENCE ? ((const struct sim_texture_reference *)object)->name
	                                             : ((const struct sim_surface_reference *)object)->name;
}

static void *find_reference(const struct sim_module *module, enum sim_kind kind, const char *name)
{
	for (struct sim_object *at = module->object.context->objects; at; at = at->next)
		if (at->kind == kind && sim_texture_reference_is_of(at, module) && strcmp(name_of(at), name) == 0)
			return at;
	return NULL;
}

static CUresult get_texture(CUtexref *out, struct sim_module *module, const char *name)
{
	*out = find_reference(module, SIM_TEXTURE_REFERENCE, name);
	if (!*out)
		*out = sim_object_create(sizeof **out + strlen(name) + 1, SIM_TEXTURE_REFERENCE, module->object.context);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->module = module;
	strcpy((*out)->name, name);
	return CUDA_SUCCESS;
}

static CUresult get_surface(CUsurfref *out, struct sim_module *module, const char *name)
{
	*out = find_reference(module, SIM_SURFACE_REFERENCE, name);
	if (!*out)
		*out = sim_object_create(sizeof **out + strlen(name) + 1, SIM_SURFACE_REFERENCE, module->object.context);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->module = module;
	strcpy((*out)->name, name);
	return CUDA_SUCCESS;
}

static bool has(const struct sim_module *module, const char *name, enum sim_reference reference)
{
	const struct sim_variable *variable = sim_image_variable(&module->image, name);

	return variable ? variable->reference == reference : module->image.is_opaque;
}

SIM_EXPORT CUresult cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name)
{
	CUresult result = out && name ? sim_object_lock(module, SIM_MODULE) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	return sim_object_unlock(has(module, name, SIM_TEXTURE_NAME) ? get_texture(out, module, name)
								     : CUDA_ERROR_NOT_FOUND);
}

SIM_EXPORT CUresult cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name)
{
	CUresult result = out && name ? sim_object_lock(module, SIM_MODULE) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	return sim_object_unlock(has(module, name, SIM_SURFACE_NAME) ? get_surface(out, module, name)
								     : CUDA_ERROR_NOT_FOUND);
}

SIM_EXPORT CUresult cuTexRefCreate(CUtexref *out)
{
	struct sim_context *context;
	CUresult result = sim_context_current(&context);

	if (result == CUDA_SUCCESS && !out)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_object_create(sizeof **out + 1, SIM_TEXTURE_REFERENCE, context);
	return sim_object_unlock(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* A module's reference ends with the module. */
SIM_EXPORT CUresult cuTexRefDestroy(CUtexref reference)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, true);

	if (result != CUDA_SUCCESS)
		return result;
	if (reference->module)
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	sim_object_destroy(reference);
	return sim_object_unlock(CUDA_SUCCESS);
}

/* ---- what the reference is bound to ---- */

static void bind_texture(CUtexref reference, CUdeviceptr pointer, CUarray array, CUmipmappedArray mipmap)
{
	reference->pointer = pointer;
	reference->array = array;
	reference->mipmap = mipmap;
}

SIM_EXPORT CUresult cuTexRefSetArray(CUtexref reference, CUarray array, unsigned flags)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, flags == OVERRIDE_FORMAT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_object_is(array, SIM_ARRAY))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	bind_texture(reference, 0, array, NULL);
	reference->format = array->descriptor.Format;
	reference->channels = (int)array->descriptor.NumChannels;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefSetMipmappedArray(CUtexref reference, CUmipmappedArray mipmap, unsigned flags)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, flags == OVERRIDE_FORMAT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_object_is(mipmap, SIM_MIPMAP))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	bind_texture(reference, 0, NULL, mipmap);
	reference->format = mipmap->descriptor.Format;
	reference->channels = (int)mipmap->descriptor.NumChannels;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* For memory that is not aligned for textures the program must pass `rest`; `bytes` 0 unbinds. */
SIM_EXPORT CUresult cuTexRefSetAddress_v2(size_t *rest, CUtexref reference, CUdeviceptr pointer, size_t bytes)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, rest || pointer % ALIGNMENT == 0);

	if (result != CUDA_SUCCESS)
		return result;
	if (bytes && !sim_allocation_at(pointer, bytes))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	if (rest)
		*rest = pointer % ALIGNMENT;
	bind_texture(reference, bytes ? pointer : 0, NULL, NULL);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefSetAddress2D_v3(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr pointer,
                                            size_t pitch)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, shape && pitch % 32 == 0 && pointer % ALIGNMENT == 0);

	if (result != CUDA_SUCCESS)
		return result;
	if (!shape->Width || !shape->Height || !sim_allocation_at(pointer, pitch * (shape->Height - 1) + 1))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	bind_texture(reference, pointer, NULL, NULL);
	reference->format = shape->Format;
	reference->channels = (int)shape->NumChannels;
	return sim_object_unlock(CUDA_SUCCESS);
}

/* An error if nothing of that kind is bound. */
#define GETTER(name, type, member) \
	SIM_EXPORT CUresult name(type *out, CUtexref reference) \
	{ \
		CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, out != NULL); \
		if (result != CUDA_SUCCESS) \
			return result; \
		*out = reference->member; \
		return sim_object_unlock(reference->member ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE); \
	}

GETTER(cuTexRefGetAddress_v2, CUdeviceptr, pointer)
GETTER(cuTexRefGetArray, CUarray, array)
GETTER(cuTexRefGetMipmappedArray, CUmipmappedArray, mipmap)

/* ---- how the reference reads ---- */

#define SETTING(set, get, given, told, member, sound) \
	SIM_EXPORT CUresult set(CUtexref reference, given value) \
	{ \
		CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, sound); \
		if (result != CUDA_SUCCESS) \
			return result; \
		reference->member = (told)value; \
		return sim_object_unlock(CUDA_SUCCESS); \
	} \
	SIM_EXPORT CUresult get(told *out, CUtexref reference) \
	{ \
		CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, out != NULL); \
		if (result != CUDA_SUCCESS) \
			return result; \
		*out = reference->member; \
		return sim_object_unlock(CUDA_SUCCESS); \
	}

SETTING(cuTexRefSetFilterMode, cuTexRefGetFilterMode, int, int, filter, value == 0 || value == 1)
SETTING(cuTexRefSetMipmapFilterMode, cuTexRefGetMipmapFilterMode, int, int, mipmap_filter, value == 0 || value == 1)
SETTING(cuTexRefSetMipmapLevelBias, cuTexRefGetMipmapLevelBias, float, float, bias, true)
SETTING(cuTexRefSetMaxAnisotropy, cuTexRefGetMaxAnisotropy, unsigned, int, anisotropy, value <= 16)
SETTING(cuTexRefSetFlags, cuTexRefGetFlags, unsigned, unsigned, flags, !(value & ~(unsigned)ALL_FLAGS))

SIM_EXPORT CUresult cuTexRefSetFormat(CUtexref reference, int format, int channels)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, channels == 1 || channels == 2 || channels == 4);

	if (result != CUDA_SUCCESS)
		return result;
	reference->format = format;
	reference->channels = channels;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefGetFormat(int *format, int *channels, CUtexref reference)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, format && channels);

	if (result != CUDA_SUCCESS)
		return result;
	*format = reference->format;
	*channels = reference->channels;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefSetAddressMode(CUtexref reference, int dimension, int mode)
{
	bool sound = dimension >= 0 && dimension < 3 && mode >= 0 && mode < ADDRESS_MODES;
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, sound);

	if (result != CUDA_SUCCESS)
		return result;
	reference->address_modes[dimension] = mode;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefGetAddressMode(int *mode, CUtexref reference, int dimension)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, mode && dimension >= 0 && dimension < 3);

	if (result != CUDA_SUCCESS)
		return result;
	*mode = reference->address_modes[dimension];
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefSetMipmapLevelClamp(CUtexref reference, float least, float most)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, true);

	if (result != CUDA_SUCCESS)
		return result;
	reference->least = least;
	reference->most = most;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref reference)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, least && most);

	if (result != CUDA_SUCCESS)
		return result;
	*least = reference->least;
	*most = reference->most;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefSetBorderColor(CUtexref reference, const float color[4])
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, color != NULL);

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(reference->border, color, sizeof reference->border);
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuTexRefGetBorderColor(float color[4], CUtexref reference)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, color != NULL);

	if (result != CUDA_SUCCESS)
		return result;
	memcpy(color, reference->border, sizeof reference->border);
	return sim_object_unlock(CUDA_SUCCESS);
}

/* ---- surfaces, and the old way of passing a reference as a parameter ---- */

SIM_EXPORT CUresult cuSurfRefSetArray(CUsurfref reference, CUarray array, unsigned flags)
{
	CUresult result = lock(reference, SIM_SURFACE_REFERENCE, !flags);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_object_is(array, SIM_ARRAY))
		return sim_object_unlock(CUDA_ERROR_INVALID_VALUE);
	reference->array = array;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuSurfRefGetArray(CUarray *out, CUsurfref reference)
{
	CUresult result = lock(reference, SIM_SURFACE_REFERENCE, out != NULL);

	if (result != CUDA_SUCCESS)
		return result;
	*out = reference->array;
	return sim_object_unlock(reference->array ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref reference)
{
	CUresult result = lock(reference, SIM_TEXTURE_REFERENCE, unit == -1); /* the default: the reference's own unit */

	if (result == CUDA_SUCCESS)
		return sim_object_unlock(sim_object_is(function, SIM_FUNCTION) ? CUDA_SUCCESS
									       : CUDA_ERROR_INVALID_HANDLE);
	return result;
}

/*
 * Libraries and kernels (CUDA 12): code that belongs to no context and is loaded into each context that uses a function
 * of it. Also linking, which joins its inputs. Modules, which belong to one context, are in
 * cuda/code/module.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/code/module.h"

struct loaded {
	struct sim_context *context;
	CUmodule module;
	struct loaded *next;
};

typedef struct sim_library {
	struct sim_object object;
	struct sim_image image;
	char *data; /* kept for further contexts */
	size_t size;
	struct loaded *loaded;
} *CUlibrary;

/* A kernel's handle can be launched like a function: it is the function in the current context. */
typedef struct sim_function *CUkernel;

struct sim_link {
	struct sim_object object;
	struct sim_linked *image; /* with the inputs; NULL before the first one */
};

/* If the size is not given, the image's headers determine its end; PTX ends with a NUL. */
static CUresult keep_code(const void *data, size_t size, CUlibrary *out)
{
	struct sim_image image;
	enum sim_image_status status = sim_image_read(data, size, SIM_ANY_CAPABILITY, &image);

	if (status != SIM_IMAGE_OK)
		return status == SIM_IMAGE_INVALID ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_OUT_OF_MEMORY;
	char *copy = calloc(1, image.size + sizeof(uint32_t));
	pthread_mutex_lock(&sim_driver.lock);
	*out = copy ? sim_object_create(sizeof **out, SIM_LIBRARY, NULL) : NULL;
	if (*out) {
		uint32_t magic;
		const void *start = data;
		memcpy(&magic, data, sizeof magic);
		if (magic == 0x466243b1u)
			memcpy(&start, (const char *)data + 8, sizeof start);
		memcpy(copy, start, image.size);
		(*out)->image = image;
		(*out)->data = (*out)->object.owned = copy;
		(*out)->size = image.size;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (*out)
		return CUDA_SUCCESS;
	sim_image_free(&image);
	free(copy);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define OPTIONS int *jit, void **jit_values, unsigned jit_count, int *options, void **values, unsigned count
#define IGNORE_OPTIONS (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count

SIM_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *data, OPTIONS)
{
	CUresult result = sim_init_ready();

	IGNORE_OPTIONS;
	if (result != CUDA_SUCCESS)
		return result;
	return library && data ? keep_code(data, 0, library) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, OPTIONS)
{
	size_t size;
	char *data;
	CUresult result = sim_init_ready();

	IGNORE_OPTIONS;
	if (result == CUDA_SUCCESS)
		result = library && path ? sim_module_read_file(path, &data, &size) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	result = keep_code(data, size, library);
	free(data);
	return result;
}

SIM_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	TRY(sim_object_lock(library, SIM_LIBRARY));
	while (library->loaded) {
		struct loaded *at = library->loaded;
		library->loaded = at->next;
		if (sim_object_is(at->module, SIM_MODULE))
			sim_module_destroy(at->module);
		free(at);
	}
	sim_image_free(&library->image);
	sim_object_destroy(library);
	return sim_object_unlock(CUDA_SUCCESS);
}

/* A module ends with its context. The next context in that place has to load it again. */
static CUmodule find_loaded(const struct sim_library *library, const struct sim_context *context)
{
	for (struct loaded *at = library->loaded; at; at = at->next)
		if (at->context == context && sim_object_is(at->module, SIM_MODULE) &&
		    at->module->object.context == context)
			return at->module;
	return NULL;
}

static CUresult load_here(struct sim_context *context, CUlibrary library, CUmodule *module)
{
	struct loaded *loaded = calloc(1, sizeof *loaded);
	CUresult result =
		loaded ? sim_module_load(context, library->data, library->size, module) : CUDA_ERROR_OUT_OF_MEMORY;

	if (result != CUDA_SUCCESS) {
		free(loaded);
		return result;
	}
	pthread_mutex_lock(&sim_driver.lock);
	*loaded = (struct loaded){context, *module, library->loaded};
	library->loaded = loaded;
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	TRY(module ? sim_object_lock(library, SIM_LIBRARY) : CUDA_ERROR_INVALID_VALUE);
	*module = find_loaded(library, context);
	pthread_mutex_unlock(&sim_driver.lock);
	return *module ? CUDA_SUCCESS : load_here(context, library, module);
}

CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *);
CUresult cuModuleEnumerateFunctions(CUfunction *, unsigned, CUmodule);
CUresult cuFuncGetModule(CUmodule *, CUfunction);
CUresult cuFuncGetName(const char **, CUfunction);
CUresult cuFuncGetParamInfo(CUfunction, size_t, size_t *, size_t *);
CUresult cuFuncGetAttribute(int *, CUfunction_attribute, CUfunction);
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int);
CUresult cuFuncSetCacheConfig(CUfunction, int);

SIM_EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUmodule module;

	TRY(kernel && name ? cuLibraryGetModule(&module, library) : CUDA_ERROR_INVALID_VALUE);
	return cuModuleGetFunction(kernel, module, name);
}

SIM_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *size, CUlibrary library, const char *name)
{
	CUmodule module;

	TRY(cuLibraryGetModule(&module, library));
	return cuModuleGetGlobal_v2(pointer, size, module, name);
}

SIM_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	struct sim_context *context;
	CUmodule module;
	const char *name;

	TRY(function ? cuFuncGetName(&name, kernel) : CUDA_ERROR_INVALID_VALUE);
	TRY(sim_context_current(&context));
	*function = kernel;
	if (kernel->object.context == context)
		return CUDA_SUCCESS;
	/* Another context is current. The handle belongs to the module of the first one. */
	TRY(cuFuncGetModule(&module, kernel));
	return CUDA_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
	TRY(sim_device(device));
	return cuFuncGetAttribute(value, attribute, kernel);
}

SIM_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
	TRY(sim_device(device));
	return cuFuncSetAttribute(kernel, attribute, value);
}

SIM_EXPORT CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, struct sim_link **link)
{
	struct sim_context *context;

	(void)count;
	(void)options;
	(void)values;
	TRY(sim_context_current(&context));
	REJECT(!link);
	pthread_mutex_lock(&sim_driver.lock);
	*link = sim_object_create(sizeof **link, SIM_LINK, context);
	return sim_object_unlock(*link ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

SIM_EXPORT CUresult cuLinkAddData_v2(struct sim_link *link, int type, const void *data, size_t size, const char *name,
				     unsigned count, int *options, void **values)
{
	(void)type;
	(void)name;
	(void)count;
	(void)options;
	(void)values;
	REJECT(!data || !size);
	TRY(sim_object_lock(link, SIM_LINK));
	uint64_t before = link->image ? link->image->size : sizeof *link->image, length = size;
	char *longer = realloc(link->image, before + sizeof length + size);
	if (!longer)
		return sim_object_unlock(CUDA_ERROR_OUT_OF_MEMORY);
	memcpy(longer + before, &length, sizeof length);
	memcpy(longer + before + sizeof length, data, size);
	link->image = link->object.owned = longer;
	*link->image = (struct sim_linked){SIM_LINKED_MAGIC, 0, before + sizeof length + size};
	return sim_object_unlock(CUDA_SUCCESS);
}

SIM_EXPORT CUresult cuLinkAddFile_v2(struct sim_link *link, int type, const char *path, unsigned count, int *options,
				     void **values)
{
	size_t size;
	char *data;

	TRY(path ? sim_module_read_file(path, &data, &size) : CUDA_ERROR_INVALID_VALUE);
	CUresult result = cuLinkAddData_v2(link, type, data, size, path, count, options, values);
	free(data);
	return result;
}

SIM_EXPORT CUresult cuLinkComplete(struct sim_link *link, void **image, size_t *size)
{
	TRY(image ? sim_object_lock(link, SIM_LINK) : CUDA_ERROR_INVALID_VALUE);
	*image = link->image;
	if (size)
		*size = link->image ? link->image->size : 0;
	return sim_object_unlock(link->image ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

SIM_EXPORT CUresult cuLinkDestroy(struct sim_link *link)
{
	TRY(sim_object_lock(link, SIM_LINK));
	sim_object_destroy(link);
	return sim_object_unlock(CUDA_SUCCESS);
}

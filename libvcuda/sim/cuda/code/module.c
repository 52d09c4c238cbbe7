/*
 * Modules: loaded images, their functions and variables, which belong to one context. A module costs memory on the
 * card, as in the real driver. Reading an image is in cuda/code/image.c; code without a context is in cuda/code/library.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/code/variable.h"

#define MAX_IMAGE (1u << 30)
#define CODE_GRANULARITY 65536u

static CUresult from_image(enum sim_image_status status)
{
	switch (status) {
	case SIM_IMAGE_OK: return CUDA_SUCCESS;
	case SIM_IMAGE_NO_BINARY: return CUDA_ERROR_NO_BINARY_FOR_GPU;
	case SIM_IMAGE_NO_MEMORY: return CUDA_ERROR_OUT_OF_MEMORY;
	default: return CUDA_ERROR_INVALID_IMAGE;
	}
}

/* Under the lock. */
static CUresult create_module(struct sim_context *context, const struct sim_image *image, CUmodule *out)
{
	uint64_t bytes = (image->code_size + CODE_GRANULARITY - 1) / CODE_GRANULARITY * CODE_GRANULARITY;

	TRY(sim_init_result(sim_ledger_reserve(sim_driver.devices[context->device].card, bytes)));
	*out = sim_object_create(sizeof **out, SIM_MODULE, context);
	if (!*out) {
		sim_ledger_release(sim_driver.devices[context->device].card, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*out)->image = *image;
	(*out)->charged = bytes;
	return CUDA_SUCCESS;
}

CUresult sim_module_load(struct sim_context *context, const void *data, size_t size, CUmodule *module)
{
	const struct sim_card *card = sim_device_card(context->device);
	struct sim_image image;

	TRY(from_image(sim_image_read(data, size, card->compute_major * 10 + card->compute_minor, &image)));
	pthread_mutex_lock(&sim_driver.lock);
	CUresult result = create_module(context, &image, module);
	pthread_mutex_unlock(&sim_driver.lock);
	if (result != CUDA_SUCCESS)
		sim_image_free(&image);
	return result;
}

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *data)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	return module && data ? sim_module_load(context, data, 0, module) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned count, int *options, void **values)
{
	return count && (!options || !values) ? CUDA_ERROR_INVALID_VALUE : cuModuleLoadData(module, data);
}

SIM_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *data)
{
	return cuModuleLoadData(module, data);
}

CUresult sim_module_read_file(const char *path, char **data, size_t *size)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_SOURCE;
	*data = NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= (off_t)MAX_IMAGE)
		*data = calloc(1, (size_t)st.st_size + sizeof(uint32_t));
	ssize_t length = *data ? read(fd, *data, (size_t)st.st_size) : -1;
	close(fd);
	*size = length > 0 ? (size_t)length : 0;
	if (length > 0)
		return CUDA_SUCCESS;
	free(*data);
	return CUDA_ERROR_INVALID_SOURCE;
}

SIM_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	struct sim_context *context;
	size_t size;
	char *data;

	TRY(sim_context_current(&context));
	REJECT(!module || !path);
	TRY(sim_module_read_file(path, &data, &size));
	CUresult result = sim_module_load(context, data, size, module);
	free(data);
	return result;
}

/* Frees the module's memory on the card, its functions and its variables. Under the lock. */
void sim_module_destroy(struct sim_module *module)
{
	struct sim_context *context = module->object.context;

	for (struct sim_object *object = context->objects, *next; object; object = next) {
		next = object->next;
		if (object->kind == SIM_FUNCTION && ((struct sim_function *)object)->module == module)
			sim_object_destroy(object);
	}
	sim_variable_drop_all(module);
	sim_ledger_release(sim_driver.devices[context->device].card, module->charged);
	sim_image_free(&module->image);
	sim_object_destroy(module);
}

void sim_module_drop_all(struct sim_context *context)
{
	for (struct sim_object *object = context->objects; object;) {
		if (object->kind != SIM_MODULE) {
			object = object->next;
			continue;
		}
		sim_module_destroy((struct sim_module *)object);
		object = context->objects; /* other objects ended with it */
	}
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module)
{
	TRY(sim_object_lock(module, SIM_MODULE));
	sim_module_destroy(module);
	return sim_object_unlock(CUDA_SUCCESS);
}

static struct sim_function *find_function(const struct sim_module *module, const char *name)
{
	for (struct sim_object *object = module->object.context->objects; object; object = object->next) {
		struct sim_function *function = (struct sim_function *)object;
		if (object->kind == SIM_FUNCTION && function->module == module && strcmp(function->name, name) == 0)
			return function;
	}
	return NULL;
}

CUresult sim_module_function(struct sim_module *module, const char *name, CUfunction *out)
{
	const struct sim_kernel *kernel = sim_image_kernel(&module->image, name);

	*out = find_function(module, name);
	if (*out)
		return CUDA_SUCCESS;
	if (!kernel && !module->image.is_opaque)
		return CUDA_ERROR_NOT_FOUND;
	*out = sim_object_create(sizeof **out + strlen(name) + 1, SIM_FUNCTION, module->object.context);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->module = module;
	(*out)->kernel = kernel;
	strcpy((*out)->name, name);
	sim_function_time(*out);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	REJECT(!function || !name || !*name);
	TRY(sim_object_lock(module, SIM_MODULE));
	return sim_object_unlock(sim_module_function(module, name, function));
}

SIM_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name)
{
	REJECT(!name);
	TRY(sim_object_lock(module, SIM_MODULE));
	const struct sim_variable *variable = sim_image_variable(&module->image, name);
	uint64_t bytes = variable && variable->size ? variable->size : 1;
	pthread_mutex_unlock(&sim_driver.lock);
	if (!variable)
		return CUDA_ERROR_NOT_FOUND;
	if (size)
		*size = bytes;
	return sim_variable_address(module, name, bytes, pointer);
}

/* Modules, functions, launches. Nothing is executed: a launch is checked, and then it is done. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_module.h"
#include "cuda_ptx.h"

struct sim_module {
	struct sim_object object;
	const char *ptx; /* NULL: a binary, whose functions are not looked into */
};

struct sim_function {
	struct sim_object object;
	struct sim_module *module;
	int settings[CU_FUNC_ATTRIBUTE_MAX];
	char name[];
};

#define ELF_MAGIC 0x464c457fu
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define MAX_IMAGE (1u << 30)

enum image { IMAGE_INVALID, IMAGE_BINARY, IMAGE_PTX };

static enum image image_of(const void *data)
{
	uint32_t magic;
	const char *text = data;

	/* Byte by byte up to a NUL: an invalid image may be a short string. */
	for (size_t i = 0; i < sizeof magic; i++)
		if (!text[i])
			return IMAGE_INVALID;
	memcpy(&magic, data, sizeof magic);
	if (magic == ELF_MAGIC || magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC)
		return IMAGE_BINARY;
	return sim_ptx_is(text) ? IMAGE_PTX : IMAGE_INVALID;
}

static void destroy(struct sim_module *module)
{
	struct sim_object *object = module->object.context->objects;

	while (object) {
		struct sim_object *next = object->next;
		if (object->kind == SIM_FUNCTION && ((struct sim_function *)object)->module == module)
			sim_object_destroy(object);
		object = next;
	}
	sim_object_destroy(module);
}

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *data)
{
	struct sim_context *context;
	CUresult result = sim_current(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!module || !data)
		return CUDA_ERROR_INVALID_VALUE;
	enum image image = image_of(data);
	if (image == IMAGE_INVALID)
		return CUDA_ERROR_INVALID_IMAGE;
	char *ptx = image == IMAGE_PTX ? strdup(data) : NULL;
	if (image == IMAGE_PTX && !ptx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_driver.lock);
	*module = sim_object_create(sizeof **module, SIM_MODULE, context);
	if (*module)
		(*module)->ptx = (*module)->object.owned = ptx;
	pthread_mutex_unlock(&sim_driver.lock);
	if (*module)
		return CUDA_SUCCESS;
	free(ptx);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *data, unsigned count, int *options, void **values)
{
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return cuModuleLoadData(module, data);
}

static CUresult read_image(const char *path, char **data)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_SOURCE;
	*data = NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= (off_t)MAX_IMAGE)
		*data = calloc(1, (size_t)st.st_size + sizeof(uint32_t));
	ssize_t length = *data ? read(fd, *data, (size_t)st.st_size) : -1;
	close(fd);
	if (length >= 0)
		return CUDA_SUCCESS;
	free(*data);
	return CUDA_ERROR_INVALID_SOURCE;
}

SIM_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	struct sim_context *context;
	char *data;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS && (!module || !path))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = read_image(path, &data);
	if (result != CUDA_SUCCESS)
		return result;
	result = cuModuleLoadData(module, data);
	free(data);
	return result;
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module)
{
	CUresult result = sim_lock_object(module, SIM_MODULE);

	if (result != CUDA_SUCCESS)
		return result;
	destroy(module);
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
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

static CUresult get_function(CUfunction *out, struct sim_module *module, const char *name)
{
	*out = find_function(module, name);
	if (*out)
		return CUDA_SUCCESS;
	if (module->ptx && !sim_ptx_has_entry(module->ptx, name))
		return CUDA_ERROR_NOT_FOUND;
	*out = sim_object_create(sizeof **out + strlen(name) + 1, SIM_FUNCTION, module->object.context);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->module = module;
	strcpy((*out)->name, name);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	if (!function || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(module, SIM_MODULE);
	if (result != CUDA_SUCCESS)
		return result;
	result = get_function(function, module, name);
	pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

static int function_attribute(const struct sim_function *function, CUfunction_attribute attribute)
{
	const struct sim_card *card = sim_device_card(function->object.context->device);

	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return MAX_THREADS_PER_BLOCK;
	case CU_FUNC_ATTRIBUTE_NUM_REGS: return 32;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return (int)(card->compute_major * 10 + card->compute_minor);
	default: return function->settings[attribute];
	}
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(function, SIM_FUNCTION);
	if (result != CUDA_SUCCESS)
		return result;
	*value = function_attribute(function, attribute);
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	/* The ones before are properties of the code. */
	if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(function, SIM_FUNCTION);
	if (result != CUDA_SUCCESS)
		return result;
	function->settings[attribute] = value;
	pthread_mutex_unlock(&sim_driver.lock);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	if (config < 0 || config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = sim_lock_object(function, SIM_FUNCTION);
	if (result == CUDA_SUCCESS)
		pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

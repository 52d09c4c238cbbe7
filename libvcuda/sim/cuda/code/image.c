/*
 * The contents of a code image: its kernels and variables, by name. The formats are read in cuda/code/image_read.c.
 */
#include "cuda/code/image.h"

#include <stdlib.h>
#include <string.h>

static bool grow(void **list, unsigned count, size_t element)
{
	if (count & (count - 1)) /* room up to the next power of two exists */
		return true;
	void *larger = reallocarray(*list, count ? count * 2 : 1, element);
	if (larger)
		*list = larger;
	return larger != NULL;
}

struct sim_kernel *sim_image_add_kernel(struct sim_image *image, const char *name, size_t length)
{
	char *copy = strndup(name, length);

	if (!copy || !grow((void **)&image->kernels, image->kernel_count, sizeof *image->kernels)) {
		free(copy);
		return NULL;
	}
	struct sim_kernel *kernel = &image->kernels[image->kernel_count++];
	*kernel = (struct sim_kernel){.name = copy};
	return kernel;
}

bool sim_image_add_variable(struct sim_image *image, const char *name, size_t length, uint64_t size)
{
	char *copy = strndup(name, length);

	if (!copy || !grow((void **)&image->variables, image->variable_count, sizeof *image->variables)) {
		free(copy);
		return false;
	}
	image->variables[image->variable_count++] = (struct sim_variable){copy, size};
	return true;
}

void sim_image_free(struct sim_image *image)
{
	for (unsigned i = 0; i < image->kernel_count; i++)
		free(image->kernels[i].name);
	for (unsigned i = 0; i < image->variable_count; i++)
		free(image->variables[i].name);
	free(image->kernels);
	free(image->variables);
	*image = (struct sim_image){0};
}

const struct sim_kernel *sim_image_kernel(const struct sim_image *image, const char *name)
{
	for (unsigned i = 0; i < image->kernel_count; i++)
		if (strcmp(image->kernels[i].name, name) == 0)
			return &image->kernels[i];
	return NULL;
}

const struct sim_variable *sim_image_variable(const struct sim_image *image, const char *name)
{
	for (unsigned i = 0; i < image->variable_count; i++)
		if (strcmp(image->variables[i].name, name) == 0)
			return &image->variables[i];
	return NULL;
}

/*
 * Code images that a program passes to cuModuleLoadData: names of kernels and variables, and sizes of parameters,
 * because a driver that runs nothing needs no more. Every value in an image is checked before use.
 */
#ifndef SIM_CUDA_IMAGE_H
#define SIM_CUDA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_PARAMETERS 128

struct sim_kernel {
	char *name;
	unsigned parameter_count;
	struct {
		uint32_t offset, size;
	} parameters[SIM_MAX_PARAMETERS];
};

struct sim_variable {
	char *name;
	uint64_t size;
};

struct sim_image {
	struct sim_kernel *kernels;
	struct sim_variable *variables;
	unsigned kernel_count, variable_count;
	bool is_opaque; /* compressed: any name may be in it */
	size_t size;
	size_t code_size; /* of what the card runs: of a fat binary one entry, without compression */
};

/* What the linker makes: this, and each input after its size (uint64_t). */
struct sim_linked {
	uint32_t magic, reserved;
	uint64_t size; /* of all */
};

#define SIM_LINKED_MAGIC 0x4b4e494cu
#define SIM_ANY_CAPABILITY 0u

enum sim_image_status { SIM_IMAGE_OK, SIM_IMAGE_INVALID, SIM_IMAGE_NO_BINARY, SIM_IMAGE_NO_MEMORY };

/*
 * `size` 0: unknown, as with cuModuleLoadData; then the image's own headers determine where it ends. `capability` 75: a
 * card of compute capability 7.5.
 */
enum sim_image_status sim_image_read(const void *data, size_t size, unsigned capability, struct sim_image *image);
void sim_image_free(struct sim_image *image);
const struct sim_kernel *sim_image_kernel(const struct sim_image *image, const char *name);
const struct sim_variable *sim_image_variable(const struct sim_image *image, const char *name);

/* For the readers of each format. */
struct sim_kernel *sim_image_add_kernel(struct sim_image *image, const char *name, size_t length);
bool sim_image_add_variable(struct sim_image *image, const char *name, size_t length, uint64_t size);
enum sim_image_status sim_ptx_read(const char *text, struct sim_image *image);
enum sim_image_status sim_cubin_read(const char *data, size_t size, struct sim_image *image);

#endif

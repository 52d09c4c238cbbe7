/*
 * Calls that compute an answer without using the card: occupancy of clusters, tensor maps, and a few calls
 * that are newer than the driver version that is simulated by default.
 */
#include <string.h>

#include "cuda/module.h"
#include "cuda/structs.h"
#include "cuda/work.h"

/* Managed variables, and functions for both host and device, are not read from images. */
SIM_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *size, void *library, const char *name)
{
	TRY((pointer || size) && name ? sim_object_lock(library, SIM_LIBRARY) : CUDA_ERROR_INVALID_VALUE);
	return sim_object_unlock(CUDA_ERROR_NOT_FOUND);
}

SIM_EXPORT CUresult cuLibraryGetUnifiedFunction(void **function, void *library, const char *name)
{
	return cuLibraryGetManaged((CUdeviceptr *)function, NULL, library, name);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared);

#define CLUSTER 8 /* blocks in a cluster: the number that every card with clusters supports */
#define ATTRIBUTE_CLUSTER 4

struct attribute {
	int id, padding;
	union { unsigned extent[3]; char bytes[64]; } value;
};

static unsigned cluster_of(const CUlaunchConfig *config)
{
	const struct attribute *attributes = config->attrs;

	for (unsigned i = 0; attributes && i < config->numAttrs; i++)
		if (attributes[i].id == ATTRIBUTE_CLUSTER)
			return attributes[i].value.extent[0] * attributes[i].value.extent[1] * attributes[i].value.extent[2];
	return 1;
}

static CUresult lock_clustered(const void *out, CUfunction function, const CUlaunchConfig *config, unsigned *sm_count)
{
	TRY(out && config ? sim_object_lock(function, SIM_FUNCTION) : CUDA_ERROR_INVALID_VALUE);
	const struct sim_card *card = sim_device_card(function->object.context->device);
	*sm_count = card->sm_count;
	return sim_object_unlock(card->compute_major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
}

SIM_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config)
{
	unsigned sm_count;

	TRY(lock_clustered(size, function, config, &sm_count));
	*size = CLUSTER;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
	unsigned sm_count;
	int blocks;

	TRY(lock_clustered(clusters, function, config, &sm_count));
	unsigned cluster = cluster_of(config);
	if (!cluster || cluster > CLUSTER)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;

	TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(
		&blocks, function, (int)(config->blockDimX * config->blockDimY * config->blockDimZ), config->sharedMemBytes));
	*clusters = (int)((unsigned)blocks * sm_count / cluster);
	return CUDA_SUCCESS;
}

/* Tensor maps: 128 bytes that only kernels read. */
struct tensor_map {
	char magic[8] __attribute__((nonstring)); /* without a NUL */
	uint64_t address;
	char rest[112];
};

static CUresult check_tensor(const void *map, int rank, const void *address)
{
	struct sim_context *context;

	TRY(sim_context_current(&context));
	if (sim_device_card(context->device)->compute_major < 9)
		return CUDA_ERROR_NOT_SUPPORTED;
	return map && !((uintptr_t)map % 64) && rank >= 1 && rank <= 5 && address && !((uintptr_t)address % 16)
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_shape(unsigned rank, const uint64_t *extent, const uint64_t *strides, const unsigned *steps)
{
	if (!extent || !steps || (rank > 1 && !strides))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < rank; i++) {
		if (!extent[i] || extent[i] > 1ull << 32 || !steps[i] || steps[i] > 8)
			return CUDA_ERROR_INVALID_VALUE;
		if (i + 1 < rank && (strides[i] % 16 || strides[i] >= 1ull << 40))
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult encode(struct tensor_map *map, CUresult result, const void *address)
{
	if (result == CUDA_SUCCESS)
		*map = (struct tensor_map){.magic = "vgpu-map", .address = (uint64_t)(uintptr_t)address};
	return result;
}

SIM_EXPORT CUresult cuTensorMapEncodeTiled(struct tensor_map *map, int type, unsigned rank, void *address,
                                           const uint64_t *extent, const uint64_t *strides, const unsigned *box,
                                           const unsigned *steps, int interleave, int swizzle, int promotion, int fill)
{
	CUresult result = check_tensor(map, (int)rank, address);

	if (result == CUDA_SUCCESS)
		result = check_shape(rank, extent, strides, steps);
	for (unsigned i = 0; result == CUDA_SUCCESS && i < rank; i++)
		if (!box || !box[i] || box[i] > 256)
			result = CUDA_ERROR_INVALID_VALUE;
	if (type < 0 || interleave < 0 || swizzle < 0 || promotion < 0 || fill < 0 || fill > 1)
		result = CUDA_ERROR_INVALID_VALUE;
	return encode(map, result, address);
}

SIM_EXPORT CUresult cuTensorMapEncodeIm2col(struct tensor_map *map, int type, unsigned rank, void *address,
                                            const uint64_t *extent, const uint64_t *strides, const int *lower,
                                            const int *upper, unsigned channels, unsigned pixels, const unsigned *steps,
                                            int interleave, int swizzle, int promotion, int fill)
{
	CUresult result = check_tensor(map, (int)rank, address);

	if (result == CUDA_SUCCESS)
		result = rank >= 3 ? check_shape(rank, extent, strides, steps) : CUDA_ERROR_INVALID_VALUE;
	if (!lower || !upper || !channels || channels > 256 || !pixels || pixels > 1024 || type < 0 || interleave < 0 ||
	    swizzle < 0 || promotion < 0 || fill < 0)
		result = result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	return encode(map, result, address);
}

SIM_EXPORT CUresult cuTensorMapReplaceAddress(struct tensor_map *map, void *address)
{
	TRY(check_tensor(map, 1, address));
	if (memcmp(map->magic, "vgpu-map", sizeof map->magic))
		return CUDA_ERROR_INVALID_VALUE;
	map->address = (uint64_t)(uintptr_t)address;
	return CUDA_SUCCESS;
}

/*
 * These calls are newer than the driver version that is simulated by default. A program finds them by dlsym, or by
 * cuGetProcAddress if the driver is built as a newer version.
 */
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

SIM_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
	struct sim_context *context;

	TRY(device ? sim_stream_context(stream, &context) : CUDA_ERROR_INVALID_VALUE);
	*device = context->device;
	return CUDA_SUCCESS;
}

/* The attributes state when a source may be read; here it is read in stream order. */
SIM_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
                                       size_t *indices, size_t attribute_count, size_t *failed, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	if (failed)
		*failed = SIZE_MAX;
	if (!to || !from || !sizes || !count || !attributes || !indices || !attribute_count || attribute_count > count ||
	    indices[0] || !stream || stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		result = cuMemcpyAsync(to[i], from[i], sizes[i], stream);
		if (result != CUDA_SUCCESS && failed)
			*failed = i;
	}
	return result;
}

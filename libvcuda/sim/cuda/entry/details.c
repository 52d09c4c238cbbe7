/*
 * Calls that compute an answer without using the card: occupancy of clusters, tensor maps, and a few calls
 * that are newer than the driver version that is simulated by default.
 */
#include <string.h>

#include "cuda/code/module.h"
#include "cuda/work/submit.h"

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared);

#define CLUSTER 8 /* blocks in a cluster: the number that every card with clusters supports */
#define ATTRIBUTE_CLUSTER 4

struct attribute {
	int id, padding;
	union {
		unsigned extent[3];
		char bytes[64];
	} value;
};

static unsigned cluster_of(const CUlaunchConfig *config)
{
	const struct attribute *attributes = config->attrs;

	for (unsigned i = 0; attributes && i < config->numAttrs; i++)
		if (attributes[i].id == ATTRIBUTE_CLUSTER)
			return attributes[i].value.extent[0] * attributes[i].value.extent[1] *
			       attributes[i].value.extent[2];
	return 1;
}

static CUresult lock_clustered(const void *out, CUfunction function, const CUlaunchConfig *config, unsigned *sm_count)
{
	TRY(out && config ? sim_object_lock(function, SIM_FUNCTION) : CUDA_ERROR_INVALID_VALUE);
	const struct sim_card *card = sim_device_card(function->object.context->device);
	*sm_count = card->sm_count;
	return sim_object_unlock(card->compute_major >= 9 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
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
		&blocks, function, (int)(config->blockDimX * config->blockDimY * config->blockDimZ),
		config->sharedMemBytes));
	*clusters = (int)((unsigned)blocks * sm_count / cluster);
	return CUDA_SUCCESS;
}

/* Tensor maps: 128 bytes that only kernels read. */
struct tensor_map {
	char bytes[128];
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
	REJECT(!extent || !steps || (rank > 1 && !strides));
	for (unsigned i = 0; i < rank; i++) {
		REJECT(!extent[i] || extent[i] > 1ull << 32 || !steps[i] || steps[i] > 8);
		REJECT(i + 1 < rank && (strides[i] % 16 || strides[i] >= 1ull << 40));
	}
	return CUDA_SUCCESS;
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
	if (result == CUDA_SUCCESS)
		memset(map, 0, sizeof *map);
	return result;
}

/*
 * These calls are newer than the driver version that is simulated by default. A program finds them by dlsym, or by
 * cuGetProcAddress if the driver is built as a newer version.
 */
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

/* The attributes state when a source may be read; here it is read in stream order. */
SIM_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
				       void *attributes, size_t *indices, size_t attribute_count, size_t *failed,
				       CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	if (failed)
		*failed = SIZE_MAX;
	REJECT(!to || !from || !sizes || !count || !attributes || !indices || !attribute_count ||
	       attribute_count > count || indices[0] || !stream || stream == CU_STREAM_LEGACY);
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		result = cuMemcpyAsync(to[i], from[i], sizes[i], stream);
		if (result != CUDA_SUCCESS && failed)
			*failed = i;
	}
	return result;
}

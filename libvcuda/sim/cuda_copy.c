/* Copies and fills. All of them are done when the call returns, whatever the stream. */
#include <string.h>

#include "cuda_sim.h"

enum side { ANY, CARD }; /* CARD: the caller says that this side is a device pointer */

/* Where the bytes really are. The copy itself runs without the lock: who frees meanwhile has lost, here as there. */
static CUresult locate(CUdeviceptr pointer, size_t bytes, enum side side, char **at)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = sim_allocation_at(pointer, bytes);
	if (!allocation) {
		/* A range that starts inside an allocation and leaves it is no host memory either. */
		bool is_host = side == ANY && pointer && !sim_allocation_at(pointer, 0);
		*at = (char *)(uintptr_t)pointer;
		result = is_host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	} else {
		char *backing = sim_backing(allocation);
		*at = backing + (pointer - allocation->base);
		result = backing ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	return result;
}

static CUresult copy(CUdeviceptr to, enum side to_side, CUdeviceptr from, enum side from_side, size_t bytes,
                     CUstream stream)
{
	struct sim_context *context;
	char *target, *source;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = sim_check_stream(stream);
	if (result != CUDA_SUCCESS || bytes == 0)
		return result;
	result = locate(to, bytes, to_side, &target);
	if (result == CUDA_SUCCESS)
		result = locate(from, bytes, from_side, &source);
	if (result == CUDA_SUCCESS)
		memmove(target, source, bytes);
	return result;
}

#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(to, ANY, from, ANY, bytes, NULL);
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(to, ANY, from, ANY, bytes, stream);
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy(to, CARD, HOST(from), ANY, bytes, NULL);
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return copy(to, CARD, HOST(from), ANY, bytes, stream);
}

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy(HOST(to), ANY, from, CARD, bytes, NULL);
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(HOST(to), ANY, from, CARD, bytes, stream);
}

SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy(to, CARD, from, CARD, bytes, NULL);
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy(to, CARD, from, CARD, bytes, stream);
}

static void repeat(char *at, const void *pattern, size_t width, size_t count)
{
	if (width == 1) {
		memset(at, *(const unsigned char *)pattern, count);
		return;
	}
	for (size_t i = 0; i < count; i++)
		memcpy(at + i * width, pattern, width);
}

static CUresult fill(CUdeviceptr to, const void *pattern, size_t width, size_t count, CUstream stream)
{
	struct sim_context *context;
	char *at;
	size_t bytes;
	CUresult result = sim_current(&context);

	if (result == CUDA_SUCCESS)
		result = sim_check_stream(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (to % width || __builtin_mul_overflow(width, count, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes == 0)
		return CUDA_SUCCESS;
	result = locate(to, bytes, CARD, &at);
	if (result == CUDA_SUCCESS)
		repeat(at, pattern, width, count);
	return result;
}

#define FILL(name, type) \
	SIM_EXPORT CUresult cuMemset##name##_v2(CUdeviceptr to, type value, size_t count) \
	{ \
		return fill(to, &value, sizeof value, count, NULL); \
	} \
	SIM_EXPORT CUresult cuMemset##name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{ \
		return fill(to, &value, sizeof value, count, stream); \
	}

FILL(D8, unsigned char)
FILL(D16, unsigned short)
FILL(D32, unsigned)

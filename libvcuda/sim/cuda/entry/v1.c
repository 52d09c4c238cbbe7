/*
 * The first versions of calls that later got 64-bit sizes and pointers. They are still exported, and a program that
 * looks up an unversioned name gets them. Their memory lies below 4 GiB, and their numbers are limited to that. Each
 * calls the current version.
 */
#include "cuda/memory/allocation.h"

typedef unsigned CUdeviceptr_v1;

CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);

/* Calls whose numbers only get wider: parameters as they were, as they are, and what is handed on. */
#define WIDER(name, old, now, ...) \
	CUresult name##_v2 now; \
	SIM_EXPORT CUresult name old \
	{ \
		return name##_v2(__VA_ARGS__); \
	}

WIDER(cuMemFree, (CUdeviceptr_v1 pointer), (CUdeviceptr), pointer)
WIDER(cuMemAllocHost, (void **pointer, unsigned size), (void **, size_t), pointer, size)
WIDER(cuMemcpyHtoD, (CUdeviceptr_v1 to, const void *from, unsigned bytes), (CUdeviceptr, const void *, size_t), to,
      from, bytes)
WIDER(cuMemcpyHtoDAsync, (CUdeviceptr_v1 to, const void *from, unsigned bytes, CUstream stream),
      (CUdeviceptr, const void *, size_t, CUstream), to, from, bytes, stream)
WIDER(cuMemcpyDtoH, (void *to, CUdeviceptr_v1 from, unsigned bytes), (void *, CUdeviceptr, size_t), to, from, bytes)
WIDER(cuMemcpyDtoHAsync, (void *to, CUdeviceptr_v1 from, unsigned bytes, CUstream stream),
      (void *, CUdeviceptr, size_t, CUstream), to, from, bytes, stream)
WIDER(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes), (CUdeviceptr, CUdeviceptr, size_t), to,
      from, bytes)
WIDER(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes, CUstream stream),
      (CUdeviceptr, CUdeviceptr, size_t, CUstream), to, from, bytes, stream)
WIDER(cuMemsetD8, (CUdeviceptr_v1 to, unsigned char value, unsigned count), (CUdeviceptr, unsigned char, size_t), to,
      value, count)
WIDER(cuMemsetD16, (CUdeviceptr_v1 to, unsigned short value, unsigned count), (CUdeviceptr, unsigned short, size_t), to,
      value, count)
WIDER(cuMemsetD32, (CUdeviceptr_v1 to, unsigned value, unsigned count), (CUdeviceptr, unsigned, size_t), to, value,
      count)

static unsigned clamp(size_t value)
{
	return value > UINT32_MAX ? UINT32_MAX : (unsigned)value;
}

SIM_EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	size_t total;

	TRY(bytes ? cuDeviceTotalMem_v2(&total, device) : CUDA_ERROR_INVALID_VALUE);
	*bytes = clamp(total);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	size_t free_bytes, all;

	TRY(available && total ? cuMemGetInfo_v2(&free_bytes, &all) : CUDA_ERROR_INVALID_VALUE);
	*available = clamp(free_bytes);
	*total = clamp(all);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned size)
{
	struct sim_context *context;
	struct sim_allocation *allocation;

	TRY(sim_context_current(&context));
	REJECT(!pointer);
	TRY(sim_allocation_new(context, NULL, SIM_LOW_MEMORY, size, &allocation));
	*pointer = (CUdeviceptr_v1)allocation->base;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height,
				    unsigned element)
{
	unsigned row = (width + 511) & ~511u, size;

	REJECT(!pitch || (element != 4 && element != 8 && element != 16) || row < width ||
	       __builtin_mul_overflow(row, height, &size));
	TRY(cuMemAlloc(pointer, size));
	*pitch = row;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 pointer)
{
	CUdeviceptr start;
	size_t length;

	TRY(cuMemGetAddressRange_v2(&start, &length, pointer));
	if (base)
		*base = (CUdeviceptr_v1)start;
	if (size)
		*size = clamp(length);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *device, void *host, unsigned flags)
{
	CUdeviceptr pointer;
	TRY(device ? cuMemHostGetDevicePointer_v2(&pointer, host, flags) : CUDA_ERROR_INVALID_VALUE);
	REJECT(pointer > UINT32_MAX);
	*device = (CUdeviceptr_v1)pointer;
	return CUDA_SUCCESS;
}

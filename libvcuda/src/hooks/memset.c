/*
 * The wrappers of libcuda.so.1 that fill memory. driver/cuda_table.h lists all wrappers.
 *
 * The driver fills memory with kernels, so a fill takes the card's time as a launch does, by its size. compute/launch.h
 * accounts for it.
 */
#include "compute/launch.h"
#include "driver/cuda_table.h"

#define FILL(symbol, bytes, stream, meaning, parameters, ...) \
	EXPORT CUresult symbol parameters \
	{ \
		struct compute_launch call; \
		compute_launch_begin(&call, (const void *)symbol, bytes, stream, meaning); \
		return compute_launch_end(&call, REAL(symbol, __VA_ARGS__)); \
	}

/* The functions that fill a line with elements of a type. */
#define FILLS(name, type) \
	FILL(name, count * sizeof(value), NULL, STREAM_LEGACY, (CUdeviceptr_v1 to, type value, unsigned int count), \
	     to, value, count) \
	FILL(name##_v2, count * sizeof(value), NULL, STREAM_LEGACY, (CUdeviceptr to, type value, size_t count), to, \
	     value, count) \
	FILL(name##_v2_ptds, count * sizeof(value), NULL, STREAM_PER_THREAD, \
	     (CUdeviceptr to, type value, size_t count), to, value, count) \
	FILL(name##Async, count * sizeof(value), stream, STREAM_LEGACY, \
	     (CUdeviceptr to, type value, size_t count, CUstream stream), to, value, count, stream) \
	FILL(name##Async_ptsz, count * sizeof(value), stream, STREAM_PER_THREAD, \
	     (CUdeviceptr to, type value, size_t count, CUstream stream), to, value, count, stream)

/* The functions that fill the rows of pitched memory. */
#define FILLS_2D(name, type) \
	FILL(name, (uint64_t)width * height * sizeof(value), NULL, STREAM_LEGACY, \
	     (CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width, unsigned int height), to, pitch, \
	     value, width, height) \
	FILL(name##_v2, width * height * sizeof(value), NULL, STREAM_LEGACY, \
	     (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), to, pitch, value, width, height) \
	FILL(name##_v2_ptds, width * height * sizeof(value), NULL, STREAM_PER_THREAD, \
	     (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), to, pitch, value, width, height) \
	FILL(name##Async, width * height * sizeof(value), stream, STREAM_LEGACY, \
	     (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), to, pitch, \
	     value, width, height, stream) \
	FILL(name##Async_ptsz, width * height * sizeof(value), stream, STREAM_PER_THREAD, \
	     (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), to, pitch, \
	     value, width, height, stream)

FILLS(cuMemsetD8, unsigned char)
FILLS(cuMemsetD16, unsigned short)
FILLS(cuMemsetD32, unsigned int)
FILLS_2D(cuMemsetD2D8, unsigned char)
FILLS_2D(cuMemsetD2D16, unsigned short)
FILLS_2D(cuMemsetD2D32, unsigned int)

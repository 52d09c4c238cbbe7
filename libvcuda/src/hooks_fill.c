/*
 * The wrappers of libcuda.so.1 that fill memory and copy within a card (the list: cuda_hooks.h): the driver does that with
 * kernels, so it takes the card's time as a launch does, by size. Copies from and to the host go by engines of their own
 * and are not accounted.
 */
#include "cores.h"
#include "cuda_hooks.h"

#define LAUNCH(function, bytes, stream, meaning, ...)                          \
	struct core_launch call;                                               \
	cores_begin(&call, (const void *)function, bytes, stream, meaning);    \
	return cores_end(&call, REAL(__VA_ARGS__))

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
	LAUNCH(cuMemsetD8_v2, count, NULL, STREAM_LEGACY, cuMemsetD8_v2, to, value, count);
}

EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count)
{
	LAUNCH(cuMemsetD8_v2_ptds, count, NULL, STREAM_PER_THREAD, cuMemsetD8_v2_ptds, to, value, count);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD8Async, count, stream, STREAM_LEGACY, cuMemsetD8Async, to, value, count, stream);
}

EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD8Async_ptsz, count, stream, STREAM_PER_THREAD, cuMemsetD8Async_ptsz, to, value, count,
	       stream);
}

EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D8_v2, width * height, NULL, STREAM_LEGACY, cuMemsetD2D8_v2, to, pitch, value, width,
	       height);
}

EXPORT CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D8_v2_ptds, width * height, NULL, STREAM_PER_THREAD, cuMemsetD2D8_v2_ptds, to, pitch,
	       value, width, height);
}

EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
				  size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D8Async, width * height, stream, STREAM_LEGACY, cuMemsetD2D8Async, to, pitch, value, width,
	       height, stream);
}

EXPORT CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
				       size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D8Async_ptsz, width * height, stream, STREAM_PER_THREAD, cuMemsetD2D8Async_ptsz, to, pitch,
	       value, width, height, stream);
}

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
	LAUNCH(cuMemsetD16_v2, count * 2, NULL, STREAM_LEGACY, cuMemsetD16_v2, to, value, count);
}

EXPORT CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count)
{
	LAUNCH(cuMemsetD16_v2_ptds, count * 2, NULL, STREAM_PER_THREAD, cuMemsetD16_v2_ptds, to, value, count);
}

EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD16Async, count * 2, stream, STREAM_LEGACY, cuMemsetD16Async, to, value, count, stream);
}

EXPORT CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD16Async_ptsz, count * 2, stream, STREAM_PER_THREAD, cuMemsetD16Async_ptsz, to, value, count,
	       stream);
}

EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D16_v2, width * height * 2, NULL, STREAM_LEGACY, cuMemsetD2D16_v2, to, pitch, value, width,
	       height);
}

EXPORT CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D16_v2_ptds, width * height * 2, NULL, STREAM_PER_THREAD, cuMemsetD2D16_v2_ptds, to, pitch,
	       value, width, height);
}

EXPORT CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
				   size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D16Async, width * height * 2, stream, STREAM_LEGACY, cuMemsetD2D16Async, to, pitch, value,
	       width, height, stream);
}

EXPORT CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
					size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D16Async_ptsz, width * height * 2, stream, STREAM_PER_THREAD, cuMemsetD2D16Async_ptsz, to,
	       pitch, value, width, height, stream);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
	LAUNCH(cuMemsetD32_v2, count * 4, NULL, STREAM_LEGACY, cuMemsetD32_v2, to, value, count);
}

EXPORT CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t count)
{
	LAUNCH(cuMemsetD32_v2_ptds, count * 4, NULL, STREAM_PER_THREAD, cuMemsetD32_v2_ptds, to, value, count);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD32Async, count * 4, stream, STREAM_LEGACY, cuMemsetD32Async, to, value, count, stream);
}

EXPORT CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
	LAUNCH(cuMemsetD32Async_ptsz, count * 4, stream, STREAM_PER_THREAD, cuMemsetD32Async_ptsz, to, value, count,
	       stream);
}

EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D32_v2, width * height * 4, NULL, STREAM_LEGACY, cuMemsetD2D32_v2, to, pitch, value, width,
	       height);
}

EXPORT CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height)
{
	LAUNCH(cuMemsetD2D32_v2_ptds, width * height * 4, NULL, STREAM_PER_THREAD, cuMemsetD2D32_v2_ptds, to, pitch,
	       value, width, height);
}

EXPORT CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
				   size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D32Async, width * height * 4, stream, STREAM_LEGACY, cuMemsetD2D32Async, to, pitch, value,
	       width, height, stream);
}

EXPORT CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
					size_t height, CUstream stream)
{
	LAUNCH(cuMemsetD2D32Async_ptsz, width * height * 4, stream, STREAM_PER_THREAD, cuMemsetD2D32Async_ptsz, to,
	       pitch, value, width, height, stream);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	LAUNCH(cuMemcpyDtoD_v2, size, NULL, STREAM_LEGACY, cuMemcpyDtoD_v2, to, from, size);
}

EXPORT CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	LAUNCH(cuMemcpyDtoD_v2_ptds, size, NULL, STREAM_PER_THREAD, cuMemcpyDtoD_v2_ptds, to, from, size);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	LAUNCH(cuMemcpyDtoDAsync_v2, size, stream, STREAM_LEGACY, cuMemcpyDtoDAsync_v2, to, from, size, stream);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	LAUNCH(cuMemcpyDtoDAsync_v2_ptsz, size, stream, STREAM_PER_THREAD, cuMemcpyDtoDAsync_v2_ptsz, to, from,
	       size, stream);
}

/*
 * A libcuda.so.1 of one card whose functions return at once, so that the cost of a call through libvcuda is libvcuda's
 * own. cuInit takes no time either, less than any driver's. It has only the functions that null_program.c and libvcuda
 * call.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef int CUresult;

CUresult cuInit(unsigned int flags)
{
	return (int)flags;
}

CUresult cuDeviceGetUuid(char *uuid, int device)
{
	memcpy(uuid, "null-driver-card", 16);
	return device;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return 0;
}

CUresult cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

CUresult cuCtxGetCurrent(void **context)
{
	*context = (void *)1;
	return 0;
}

CUresult cuCtxSetCurrent(void *context)
{
	return context == NULL;
}

CUresult cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = 0;
	return device;
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = (void *)1;
	return device;
}

static uint64_t next = 1 << 20;

CUresult cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
	*pointer = next += size;
	return 0;
}

CUresult cuMemFree_v2(unsigned long long pointer)
{
	return pointer == 0;
}

CUresult cuMemCreate(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags)
{
	*handle = next += size;
	return flags || !properties;
}

CUresult cuMemRelease(unsigned long long handle)
{
	return handle == 0;
}

CUresult cuMemExportToShareableHandle(int *descriptor, unsigned long long handle, int type, unsigned long long flags)
{
	*descriptor = memfd_create("memory", MFD_CLOEXEC);
	return flags || type != 1 || !handle || *descriptor < 0;
}

CUresult cuMemImportFromShareableHandle(unsigned long long *handle, void *descriptor, int type)
{
	*handle = ++next;
	return type != 1 || !descriptor;
}

CUresult cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			unsigned int by, unsigned int bz, unsigned int shared, void *stream, void **params,
			void **extra)
{
	return gx == 0;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags, int *status)
{
	*address = (void *)cuLaunchKernel;
	if (status)
		*status = 0;
	return 0;
}

/* Events for a limiter: always reached, and one nanosecond after the one before. */
CUresult cuEventCreate(uint64_t **event, unsigned int flags)
{
	static uint64_t events[1 << 16];
	static unsigned int count;

	*event = &events[count++ & 0xffff];
	return 0;
}

CUresult cuEventDestroy_v2(uint64_t *event)
{
	return event == NULL;
}

CUresult cuEventRecord(uint64_t *event, void *stream)
{
	static uint64_t recorded;

	*event = ++recorded;
	return 0;
}

CUresult cuEventQuery(uint64_t *event)
{
	return event == NULL;
}

CUresult cuStreamQuery(void *stream)
{
	return stream != NULL;
}

CUresult cuEventSynchronize(uint64_t *event)
{
	return event == NULL;
}

CUresult cuEventElapsedTime(float *milliseconds, const uint64_t *from, const uint64_t *to)
{
	*milliseconds = (float)(*to - *from) / 1e6f;
	return 0;
}

CUresult cuStreamIsCapturing(void *stream, int *status)
{
	*status = 0;
	return 0;
}

CUresult cuCtxPushCurrent_v2(void *context)
{
	return context == NULL;
}

CUresult cuCtxPopCurrent_v2(void **context)
{
	*context = (void *)1;
	return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	return mode == NULL;
}

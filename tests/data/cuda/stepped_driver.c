/*
 * A libcuda.so.1 of one card whose time the program moves (stepped_driver.h), so that what threads do to each other
 * happens in an order that the program chooses. Its clock is libvcuda's too (vgpu_sim_clock.h).
 */
#include "stepped_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vgpu_sim_clock.h"

#define MOMENT 200 /* us, of real time, between two looks at a word that another thread changes */

struct event {
	uint64_t at;
};

static void look(void);

struct stepped stepped = {.now = 1000000000000, .look = look};

static __thread CUcontext current, pushed;

/* ---- the clock ---- */

static __thread bool is_librarys;     /* libvcuda's own thread */
static atomic_uint asked, seen, looked;

static int is_virtual(void)
{
	return 1;
}

static uint64_t now(void)
{
	return stepped.now;
}

static void sleep_until(uint64_t time)
{
	(void)time;
	if (is_librarys) {
		looked = seen;
		while (asked == looked)
			usleep(MOMENT);
		seen = asked;
	} else {
		usleep(MOMENT); /* for a lock that another thread has */
	}
}

static void look(void)
{
	asked++;
	while (looked != asked)
		usleep(MOMENT);
}

static void wait_for(uint32_t *word, uint32_t value, uint64_t deadline)
{
	(void)word, (void)value;
	if (!is_librarys) {
		fprintf(stderr, "a launch waits for the share: no case means that\n");
		_exit(1);
	}
	sleep_until(deadline);
}

static void nothing(void)
{
}

static uint32_t announce(void)
{
	return 0;
}

static void adopt(uint32_t number)
{
	(void)number;
	is_librarys = true;
}

static void withdraw(uint32_t number)
{
	(void)number;
}

static void wake(uint32_t *word)
{
	(void)word;
}

static void charge(uint64_t ns)
{
	(void)ns;
}

static void hold(int held)
{
	(void)held;
}

extern const struct vgpu_sim_clock vgpuSimClock;
const struct vgpu_sim_clock vgpuSimClock = {
	VGPU_SIM_CLOCK_VERSION,
	sizeof(vgpuSimClock),
	is_virtual,
	now,
	sleep_until,
	wait_for,
	wake,
	nothing,
	nothing,
	announce,
	adopt,
	withdraw,
	charge,
	hold,
};

/* ---- the driver ---- */

CUresult cuInit(unsigned int flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	memcpy(uuid->bytes, "stepped-card-000", sizeof(uuid->bytes));
	return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	current = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = current;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	pushed = current;
	current = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	*context = current;
	current = pushed;
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	*mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	return CUDA_SUCCESS;
}

static uint64_t end_of(const struct stepped_stream *stream)
{
	return stream->busy_until > stepped.now ? stream->busy_until : stepped.now;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			CUstream handle, void **parameters, void **extra)
{
	struct stepped_kernel *kernel = (struct stepped_kernel *)function;
	struct stepped_stream *stream = (struct stepped_stream *)handle;

	(void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared;
	(void)parameters, (void)extra;
	while (kernel->is_held) {
		kernel->has_entered = true;
		usleep(MOMENT);
	}
	if (kernel->result == CUDA_SUCCESS)
		stream->busy_until = end_of(stream) + kernel->ns;
	return kernel->result;
}

CUresult cuLaunchHostFunc(CUstream stream, void *function, void *data)
{
	(void)function, (void)data;
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	(void)flags;
	*event = calloc(1, sizeof(struct event));
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
	struct stepped_stream *stream = (struct stepped_stream *)stream_handle;
	struct event *event = (struct event *)handle;

	event->at = end_of(stream);
	stream->events++;
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle)
{
	const struct event *event = (const struct event *)handle;

	return stepped.now >= event->at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
	const struct event *begin = (const struct event *)from, *end = (const struct event *)to;

	*milliseconds = (float)((double)((int64_t)end->at - (int64_t)begin->at) / 1e6);
	return CUDA_SUCCESS;
}

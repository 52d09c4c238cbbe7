/*
 * The calls for copies, of one to three dimensions and from and to arrays, and for fills. They turn their parameters
 * into a sim_copy or sim_fill, which cuda/work/copy.c checks and carries out, and submit it.
 */
#include "cuda/memory/array.h"
#include "cuda/work/submit.h"
#include "state/clock.h"

#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

static bool is_known_side(const struct sim_side *side)
{
	if (side->on_card)
		return true;
	pthread_mutex_lock(&sim_driver.lock);
	bool known = sim_allocation_at(sim_copy_row(side, 0, 0), 0) != NULL;
	pthread_mutex_unlock(&sim_driver.lock);
	return known;
}

static CUresult submit_copy(const struct sim_copy *copy, CUstream stream, bool wait)
{
	struct sim_context *context;
	struct sim_work work = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
	int capturing = 0;

	TRY(sim_context_current(&context));
	TRY(cuStreamIsCapturing(stream, &capturing));
	if (!capturing) /* an allocation node's memory does not exist yet */
		TRY(sim_copy_check(copy));
	if (sim_copy_is_nothing(copy))
		return CUDA_SUCCESS;
	work.duration = sim_copy_duration(&work.copy, context);
	/* A program may free unregistered host memory as soon as the call returns, so the call waits. */
	work.copy.to.is_ours = is_known_side(&copy->to);
	work.copy.from.is_ours = is_known_side(&copy->from);
	bool pageable = !work.copy.to.is_ours || !work.copy.from.is_ours;
	sim_clock_pay(SIM_COST_COPY);
	return sim_queue_submit(stream, &work, wait || (pageable && !capturing));
}

static CUresult copy_line(CUdeviceptr to, bool to_card, CUdeviceptr from, bool from_card, size_t bytes, CUstream stream,
			  bool wait)
{
	struct sim_copy copy = {
		.to = {.base = to, .on_card = to_card},
		.from = {.base = from, .on_card = from_card},
		.width = bytes,
		.height = 1,
		.depth = 1,
	};
	return submit_copy(&copy, stream, wait);
}

/* A call, and the one that does not wait. */
#define COPY(name, version, to_type, to_place, to_card, from_type, from_place, from_card) \
	SIM_EXPORT CUresult cuMemcpy##name##version(to_type to, from_type from, size_t bytes) \
	{ \
		return copy_line(to_place, to_card, from_place, from_card, bytes, NULL, true); \
	} \
	SIM_EXPORT CUresult cuMemcpy##name##Async##version(to_type to, from_type from, size_t bytes, CUstream stream) \
	{ \
		return copy_line(to_place, to_card, from_place, from_card, bytes, stream, false); \
	}

COPY(, , CUdeviceptr, to, false, CUdeviceptr, from, false)
COPY(HtoD, _v2, CUdeviceptr, to, true, const void *, HOST(from), false)
COPY(DtoH, _v2, void *, HOST(to), false, CUdeviceptr, from, true)
COPY(DtoD, _v2, CUdeviceptr, to, true, CUdeviceptr, from, true)

SIM_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				 size_t bytes)
{
	(void)to_context;
	(void)from_context;
	return copy_line(to, true, from, true, bytes, NULL, true);
}

SIM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
				      size_t bytes, CUstream stream)
{
	(void)to_context;
	(void)from_context;
	return copy_line(to, true, from, true, bytes, stream, false);
}

static CUresult side_of_array(CUarray array, struct sim_side *side)
{
	TRY(sim_object_lock(array, SIM_ARRAY));
	side->base = array->base;
	side->pitch = array->pitch;
	side->rows = array->rows;
	side->on_card = true;
	return sim_object_unlock(CUDA_SUCCESS);
}

static CUresult side_of(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t rows,
			struct sim_side *side)
{
	side->pitch = pitch;
	side->rows = rows;
	switch (type) {
	case CU_MEMORYTYPE_HOST: side->base = (CUdeviceptr)(uintptr_t)host; return CUDA_SUCCESS;
	case CU_MEMORYTYPE_UNIFIED: side->base = device; return CUDA_SUCCESS;
	case CU_MEMORYTYPE_DEVICE:
		side->base = device;
		side->on_card = true;
		return CUDA_SUCCESS;
	case CU_MEMORYTYPE_ARRAY: return side_of_array(array, side);
	default: return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_copy_call_from_3d(const CUDA_MEMCPY3D *p, struct sim_copy *copy)
{
	REJECT(!p || p->srcLOD || p->dstLOD);
	*copy = (struct sim_copy){
		.to = {.x = p->dstXInBytes, .y = p->dstY, .z = p->dstZ},
		.from = {.x = p->srcXInBytes, .y = p->srcY, .z = p->srcZ},
		.width = p->WidthInBytes,
		.height = p->Height,
		.depth = p->Depth,
	};
	/* A pitch of 0 means rows without gaps. */
	TRY(side_of(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray,
		    p->srcPitch ? p->srcPitch : p->WidthInBytes + p->srcXInBytes,
		    p->srcHeight ? p->srcHeight : p->Height + p->srcY, &copy->from));
	return side_of(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray,
		       p->dstPitch ? p->dstPitch : p->WidthInBytes + p->dstXInBytes,
		       p->dstHeight ? p->dstHeight : p->Height + p->dstY, &copy->to);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *parameters, CUstream stream, bool wait)
{
	struct sim_copy copy;

	TRY(sim_copy_call_from_3d(parameters, &copy));
	return submit_copy(&copy, stream, wait);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool wait)
{
	REJECT(!p);
	CUDA_MEMCPY3D full = {
		.srcXInBytes = p->srcXInBytes,
		.srcY = p->srcY,
		.srcMemoryType = p->srcMemoryType,
		.srcHost = p->srcHost,
		.srcDevice = p->srcDevice,
		.srcArray = p->srcArray,
		.srcPitch = p->srcPitch,
		.dstXInBytes = p->dstXInBytes,
		.dstY = p->dstY,
		.dstMemoryType = p->dstMemoryType,
		.dstHost = p->dstHost,
		.dstDevice = p->dstDevice,
		.dstArray = p->dstArray,
		.dstPitch = p->dstPitch,
		.WidthInBytes = p->WidthInBytes,
		.Height = p->Height,
		.Depth = 1,
	};
	return copy_3d(&full, stream, wait);
}

#define BOX(name, async, type, function) \
	SIM_EXPORT CUresult cuMemcpy##name(const type *p) \
	{ \
		return function(p, NULL, true); \
	} \
	SIM_EXPORT CUresult cuMemcpy##async(const type *p, CUstream stream) \
	{ \
		return function(p, stream, false); \
	}

BOX(2D_v2, 2DAsync_v2, CUDA_MEMCPY2D, copy_2d)
BOX(3D_v2, 3DAsync_v2, CUDA_MEMCPY3D, copy_3d)
BOX(3DPeer, 3DPeerAsync, CUDA_MEMCPY3D, copy_3d) /* has the contexts where CUDA_MEMCPY3D has reserved members */

SIM_EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	return copy_2d(p, NULL, true);
}

/* Copies one line between an array, from a byte offset in its row, and memory. */
static CUresult copy_array(CUarray to, CUarray from, size_t to_offset, size_t from_offset, CUdeviceptr memory,
			   bool on_card, size_t bytes, CUstream stream, bool wait)
{
	struct sim_copy copy = {
		.to = {.base = memory, .on_card = on_card},
		.from = {.base = memory, .on_card = on_card},
		.width = bytes,
		.height = 1,
		.depth = 1,
	};
	if (to)
		TRY(side_of_array(to, &copy.to));
	if (from)
		TRY(side_of_array(from, &copy.from));
	copy.to.x = to_offset;
	copy.from.x = from_offset;
	return submit_copy(&copy, stream, wait);
}

SIM_EXPORT CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes)
{
	return to ? copy_array(to, NULL, offset, 0, from, true, bytes, NULL, true) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes)
{
	return from ? copy_array(NULL, from, 0, offset, to, true, bytes, NULL, true) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes)
{
	return to ? copy_array(to, NULL, offset, 0, HOST(from), false, bytes, NULL, true) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes)
{
	return from ? copy_array(NULL, from, 0, offset, HOST(to), false, bytes, NULL, true) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes)
{
	if (!to || !from)
		return CUDA_ERROR_INVALID_HANDLE;
	return copy_array(to, from, to_offset, from_offset, 0, true, bytes, NULL, true);
}

SIM_EXPORT CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream)
{
	return to ? copy_array(to, NULL, offset, 0, HOST(from), false, bytes, stream, false)
		  : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes, CUstream stream)
{
	return from ? copy_array(NULL, from, 0, offset, HOST(to), false, bytes, stream, false)
		    : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
		     CUstream stream)
{
	struct sim_context *context;
	struct sim_work work = {
		.type = CU_GRAPH_NODE_TYPE_MEMSET,
		.fill = {.to = to,
			 .pitch = pitch,
			 .value = value,
			 .element = element,
			 .width = width,
			 .height = height},
	};
	int capturing = 0;

	TRY(sim_context_current(&context));
	TRY(cuStreamIsCapturing(stream, &capturing));
	if (!capturing)
		TRY(sim_copy_fill_check(&work.fill));
	if (!width || !height)
		return CUDA_SUCCESS;
	work.duration = sim_copy_fill_duration(&work.fill, context);
	sim_clock_pay(SIM_COST_COPY);
	return sim_queue_submit(stream, &work, false);
}

/* A fill of device memory does not wait, not even the call without Async. */
#define FILL(name, type) \
	SIM_EXPORT CUresult cuMemset##name##_v2(CUdeviceptr to, type value, size_t count) \
	{ \
		return fill(to, 0, value, sizeof value, count, 1, NULL); \
	} \
	SIM_EXPORT CUresult cuMemset##name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
	{ \
		return fill(to, 0, value, sizeof value, count, 1, stream); \
	}

#define FILL_2D(name, type) \
	SIM_EXPORT CUresult cuMemset##name##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) \
	{ \
		return fill(to, pitch, value, sizeof value, width, height, NULL); \
	} \
	SIM_EXPORT CUresult cuMemset##name##Async(CUdeviceptr to, size_t pitch, type value, size_t width, \
						  size_t height, CUstream stream) \
	{ \
		return fill(to, pitch, value, sizeof value, width, height, stream); \
	}

FILL(D8, unsigned char)
FILL(D16, unsigned short)
FILL(D32, unsigned)
FILL_2D(D2D8, unsigned char)
FILL_2D(D2D16, unsigned short)
FILL_2D(D2D32, unsigned)

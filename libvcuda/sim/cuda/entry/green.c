/*
 * Green contexts: contexts with some of a card's multiprocessors, and the resources that they are made from. Here a
 * green context gets time slices like any other context. A kernel that would fill more multiprocessors than its context
 * has takes longer in proportion.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/work/stream.h"

#define RESOURCE_SM 1
#define DEFAULT_STREAM 1u
#define MARK 0x6d735f76u

/* The rest of the structure is private to the driver. */
typedef struct {
	int type;
	unsigned mark, device;
	unsigned char padding[84];
	unsigned count, least, alignment, flags; /* since CUDA 13 */
	unsigned char rest[32];
} CUdevResource;

_Static_assert(sizeof(CUdevResource) == 144, "CUdevResource");

typedef struct sim_resources {
	struct sim_object object;
	CUdevice device;
	unsigned count; /* number of multiprocessors */
} *CUdevResourceDesc;

typedef struct sim_green {
	struct sim_object object;
	struct sim_context *context;
} *CUgreenCtx;

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);

/* The hardware hands out multiprocessors in these steps. */
static unsigned alignment_of(const struct sim_card *card)
{
	return card->compute_major >= 9 ? 8 : 2;
}

static unsigned least_of(const struct sim_card *card)
{
	return card->compute_major >= 9 ? 8 : card->compute_major == 8 ? 4 : 2;
}

static CUdevResource resource_of(CUdevice device, unsigned count)
{
	const struct sim_card *card = sim_device_card(device);

	return (CUdevResource){
		.type = RESOURCE_SM,
		.mark = MARK,
		.device = (unsigned)device,
		.count = count,
		.least = least_of(card),
		.alignment = alignment_of(card),
	};
}

static CUresult give_resource(CUdevResource *out, int type, CUdevice device, unsigned count)
{
	REJECT(!out);
	if (type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*out = resource_of(device, count);
	return CUDA_SUCCESS;
}

static bool is_resource(const CUdevResource *resource)
{
	return resource && resource->type == RESOURCE_SM && resource->mark == MARK &&
	       sim_device((CUdevice)resource->device) == CUDA_SUCCESS && resource->count &&
	       resource->count <= sim_device_card((CUdevice)resource->device)->sm_count;
}

SIM_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *out, int type)
{
	TRY(sim_device(device));
	return give_resource(out, type, device, sim_device_card(device)->sm_count);
}

static unsigned count_of(const struct sim_context *context)
{
	return context->sm_count ? context->sm_count : sim_device_card(context->device)->sm_count;
}

SIM_EXPORT CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *out, int type)
{
	TRY(sim_context_check(context));
	return give_resource(out, type, context->device, count_of(context));
}

/* Makes groups of at least `least` multiprocessors, as many as fit. Without an array it only counts them. */
SIM_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *group_count,
						const CUdevResource *input, CUdevResource *remaining, unsigned flags,
						unsigned least)
{
	TRY(sim_init_ready());
	REJECT(!group_count || !is_resource(input) || flags > 3);
	CUdevice device = (CUdevice)input->device;
	unsigned step = alignment_of(sim_device_card(device)), smallest = least_of(sim_device_card(device));
	unsigned size = ((least < smallest ? smallest : least) + step - 1) / step * step;
	if (size > input->count)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	unsigned possible = input->count / size;
	unsigned given = groups && *group_count < possible ? *group_count : possible;
	*group_count = given;
	for (unsigned i = 0; groups && i < given; i++)
		groups[i] = resource_of(device, size);
	if (groups && remaining)
		*remaining = resource_of(device, input->count - given * size);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned count)
{
	unsigned total = 0;

	TRY(sim_init_ready());
	REJECT(!out || !resources || !count);
	for (unsigned i = 0; i < count; i++) {
		if (!is_resource(&resources[i]) || resources[i].device != resources[0].device)
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		total += resources[i].count;
	}
	if (total > sim_device_card((CUdevice)resources[0].device)->sm_count)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_object_create(sizeof **out, SIM_RESOURCES, NULL);
	if (*out) {
		(*out)->device = (CUdevice)resources[0].device;
		(*out)->count = total;
	}
	return sim_object_unlock(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

/* Makes a context without making it current. */
static CUresult make_context(struct sim_context **context, CUdevice device, unsigned count)
{
	CUcontext popped;

	TRY(cuCtxCreate_v2(context, 0, device));
	(*context)->sm_count = count;
	return cuCtxPopCurrent_v2(&popped);
}

SIM_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device, unsigned flags)
{
	struct sim_context *context;
	CUresult result =
		out && flags == DEFAULT_STREAM ? sim_object_lock(resources, SIM_RESOURCES) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
	unsigned count = resources->count;
	bool fits = resources->device == device;
	pthread_mutex_unlock(&sim_driver.lock);
	TRY(fits ? make_context(&context, device, count) : CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&sim_driver.lock);
	*out = sim_object_create(sizeof **out, SIM_GREEN, NULL);
	if (*out) {
		(*out)->context = context;
		context->green = *out;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (!*out)
		cuCtxDestroy_v2(context);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The context of the handle; NULL and an error if the handle is invalid. */
static struct sim_context *context_of(CUgreenCtx green, CUresult *result)
{
	*result = sim_object_lock(green, SIM_GREEN);
	if (*result == CUDA_ERROR_INVALID_HANDLE)
		*result = CUDA_ERROR_INVALID_CONTEXT;
	if (*result != CUDA_SUCCESS)
		return NULL;
	struct sim_context *context = green->context;
	pthread_mutex_unlock(&sim_driver.lock);
	return context;
}

SIM_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUresult result;
	struct sim_context *context = context_of(green, &result);

	if (!context)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	sim_object_destroy(green);
	pthread_mutex_unlock(&sim_driver.lock);
	return cuCtxDestroy_v2(context);
}

SIM_EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct sim_context *context = out ? context_of(green, &result) : NULL;

	if (context)
		*out = context;
	return result;
}

SIM_EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
	CUcontext popped;
	CUresult result;
	struct sim_context *context = context_of(green, &result);

	if (context)
		result = flags == SIM_STREAM_NON_BLOCKING ? cuCtxPushCurrent_v2(context) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		return result;
	result = cuStreamCreateWithPriority(stream, flags, priority);
	cuCtxPopCurrent_v2(&popped);
	return result;
}

SIM_EXPORT CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *out)
{
	struct sim_context *context;

	TRY(out ? sim_stream_context(stream, &context) : CUDA_ERROR_INVALID_VALUE);
	*out = context->green;
	return CUDA_SUCCESS;
}

/*
 * A stand-in for CUDA's runtime library over the documented driver interface, for programs that link the runtime
 * dynamically. NVIDIA's asks the driver for a private table, which the simulated driver does not have.
 *
 * Belongs here: functions whose arguments differ from the driver's. Those that are passed on are in forwards.c, kernels
 * in kernels.c. make.py adds the names that programs look for and that are in neither; they say so on stderr.
 */
#define _GNU_SOURCE
#define CUDAAPI
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "cudart.h"
#undef cudaGetDeviceProperties

#define MAX_DEVICES 64
#define VERSION 12040
#define FORMS 12000 /* every runtime 12 knows these forms of the driver's functions */

typedef CUresult get_proc_address(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static get_proc_address *get_address;
static int state = cudaErrorInsufficientDriver, device_count;
static CUcontext contexts[MAX_DEVICES];
static __thread int thread_device;
static __thread int last_error;

static int absent(void)
{
	return cudaErrorSymbolNotFound;
}

void *cudart_driver(const char *name)
{
	void *found = NULL;

	get_address(name, &found, FORMS, 0, NULL);
	return found ? found : (void *)absent;
}

static void load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	get_address = library ? (get_proc_address *)dlsym(library, "cuGetProcAddress_v2") : NULL;
	if (!get_address)
		return;
	state = DRIVER(cuInit)(0);
	if (!state)
		state = DRIVER(cuDeviceGetCount)(&device_count);
	if (!state && !device_count)
		state = cudaErrorNoDevice;
}

int cudart_init(void)
{
	pthread_once(&once, load);
	return state;
}

int cudart_result(int result)
{
	if (result && result != cudaErrorNotReady)
		last_error = result;
	return result;
}

/* The primary context of a device, which the runtime keeps until the device is reset. */
static int context_of(int device, CUcontext *context)
{
	int result = device < 0 || device >= device_count || device >= MAX_DEVICES ? cudaErrorInvalidDevice : 0;

	pthread_mutex_lock(&lock);
	if (!result && !contexts[device])
		result = DRIVER(cuDevicePrimaryCtxRetain)(&contexts[device], device);
	*context = result ? NULL : contexts[device];
	pthread_mutex_unlock(&lock);
	return result;
}

static int use_device(int device)
{
	CUcontext context;
	int result = context_of(device, &context);

	return result ? result : (int)DRIVER(cuCtxSetCurrent)(context);
}

int cudart_context(void)
{
	CUcontext now = NULL;
	int result = cudart_init();

	if (result)
		return result;
	DRIVER(cuCtxGetCurrent)(&now);
	return now ? 0 : use_device(thread_device);
}

/* A call in the thread's context. */
#define RETURN(call) \
	int result_ = cudart_context(); \
	return cudart_result(result_ ? result_ : (int)(call))

/* ---- errors and versions ---- */

EXPORT cudaError_t cudaGetLastError(void)
{
	int error = last_error;

	last_error = 0;
	return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

/* The driver has the same numbers, but not these two. */
static const char *text_of(cudaError_t error, bool is_name)
{
	const char *text = NULL;

	if (error == cudaErrorInsufficientDriver)
		return is_name ? "cudaErrorInsufficientDriver"
			       : "CUDA driver version is insufficient for CUDA runtime version";
	if (error == cudaErrorInvalidDeviceFunction)
		return is_name ? "cudaErrorInvalidDeviceFunction" : "invalid device function";
	if (!cudart_init() && is_name)
		DRIVER(cuGetErrorName)((CUresult)error, &text);
	else if (!state)
		DRIVER(cuGetErrorString)((CUresult)error, &text);
	return text ? text : "unknown error";
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
	return text_of(error, true);
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
	return text_of(error, false);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
	*version = 0;
	cudart_init();
	return get_address ? cudart_result(DRIVER(cuDriverGetVersion)(version)) : cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = VERSION;
	return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
						    unsigned long long flags,
						    enum cudaDriverEntryPointQueryResult *status)
{
	CUdriverProcAddressQueryResult found = 0;
	int result = cudart_init();

	if (!get_address)
		return cudart_result(result);
	result = get_address(symbol, function, (int)version, flags, &found);
	if (status)
		*status = (enum cudaDriverEntryPointQueryResult)found;
	return cudart_result(result == cudaErrorSymbolNotFound ? 0 : result);
}

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
					   enum cudaDriverEntryPointQueryResult *status)
{
	return cudaGetDriverEntryPointByVersion(symbol, function, VERSION, flags, status);
}

/* ---- devices ---- */

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
	int result = cudart_init();

	*count = device_count;
	return cudart_result(result);
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
	CUcontext now = NULL;
	int result = cudart_init();

	if (result)
		return cudart_result(result);
	DRIVER(cuCtxGetCurrent)(&now);
	if (!now || DRIVER(cuCtxGetDevice)(device))
		*device = thread_device;
	return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device)
{
	int result = cudart_init();

	if (!result)
		result = use_device(device);
	if (!result)
		thread_device = device;
	return cudart_result(result);
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags)
{
	CUcontext peer;
	int result = cudart_context();

	if (!result)
		result = context_of(device, &peer);
	return cudart_result(result ? result : (int)DRIVER(cuCtxEnablePeerAccess)(peer, flags));
}

EXPORT cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int device)
{
	/* clang-format off: a table */
	static const struct {
		size_t offset;
		CUdevice_attribute attribute;
	} numbers[] =
		{
#define NUMBER(field, attribute) {offsetof(struct cudaDeviceProp, field), CU_DEVICE_ATTRIBUTE_##attribute}
			NUMBER(asyncEngineCount, ASYNC_ENGINE_COUNT),
			NUMBER(canMapHostMemory, CAN_MAP_HOST_MEMORY),
			NUMBER(clockRate, CLOCK_RATE),
			NUMBER(concurrentKernels, CONCURRENT_KERNELS),
			NUMBER(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
			NUMBER(cooperativeLaunch, COOPERATIVE_LAUNCH),
			NUMBER(ECCEnabled, ECC_ENABLED),
			NUMBER(integrated, INTEGRATED),
			NUMBER(l2CacheSize, L2_CACHE_SIZE),
			NUMBER(major, COMPUTE_CAPABILITY_MAJOR),
			NUMBER(managedMemory, MANAGED_MEMORY),
			NUMBER(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
			NUMBER(maxGridSize[0], MAX_GRID_DIM_X),
			NUMBER(maxGridSize[1], MAX_GRID_DIM_Y),
			NUMBER(maxGridSize[2], MAX_GRID_DIM_Z),
			NUMBER(maxThreadsDim[0], MAX_BLOCK_DIM_X),
			NUMBER(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
			NUMBER(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
			NUMBER(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
			NUMBER(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
			NUMBER(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
			NUMBER(memoryClockRate, MEMORY_CLOCK_RATE),
			NUMBER(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
			NUMBER(minor, COMPUTE_CAPABILITY_MINOR),
			NUMBER(multiProcessorCount, MULTIPROCESSOR_COUNT),
			NUMBER(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
			NUMBER(pciBusID, PCI_BUS_ID),
			NUMBER(pciDeviceID, PCI_DEVICE_ID),
			NUMBER(pciDomainID, PCI_DOMAIN_ID),
			NUMBER(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
			NUMBER(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
			NUMBER(unifiedAddressing, UNIFIED_ADDRESSING),
			NUMBER(warpSize, WARP_SIZE),
		},
	  sizes[] = {
		  NUMBER(memPitch, MAX_PITCH),
		  NUMBER(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
		  NUMBER(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
		  NUMBER(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
		  NUMBER(textureAlignment, TEXTURE_ALIGNMENT),
		  NUMBER(totalConstMem, TOTAL_CONSTANT_MEMORY),
	  };
	/* clang-format on */
	int result = cudart_init(), value;

	*properties = (struct cudaDeviceProp){0};
	if (!result)
		result = DRIVER(cuDeviceGetName)(properties->name, sizeof properties->name, device);
	if (!result)
		result = DRIVER(cuDeviceGetUuid)(&properties->uuid, device);
	if (!result)
		result = DRIVER(cuDeviceTotalMem)(&properties->totalGlobalMem, device);
	for (size_t i = 0; !result && i < sizeof numbers / sizeof *numbers; i++)
		if (!DRIVER(cuDeviceGetAttribute)(&value, numbers[i].attribute, device))
			memcpy((char *)properties + numbers[i].offset, &value, sizeof value);
	for (size_t i = 0; !result && i < sizeof sizes / sizeof *sizes; i++)
		if (!DRIVER(cuDeviceGetAttribute)(&value, sizes[i].attribute, device))
			memcpy((char *)properties + sizes[i].offset, &(size_t){(size_t)value}, sizeof(size_t));
	return cudart_result(result);
}

/* ---- memory ---- */

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size)
{
	*pointer = NULL;
	RETURN(size ? DRIVER(cuMemAlloc)((CUdeviceptr *)pointer, size) : 0);
}

EXPORT cudaError_t cudaFree(void *pointer)
{
	RETURN(pointer ? DRIVER(cuMemFree)((CUdeviceptr)pointer) : 0);
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size)
{
	RETURN(DRIVER(cuMemHostAlloc)(pointer, size, 0));
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
	RETURN(pointer ? DRIVER(cuMemFreeHost)(pointer) : 0);
}

static bool is_of_host(enum cudaMemcpyKind kind, bool source)
{
	return kind == cudaMemcpyHostToHost || kind == (source ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
	CUdeviceptr target = (CUdeviceptr)to, source = (CUdeviceptr)from;
	int result = cudart_context();

	if (result || !size)
		return cudart_result(result);
	switch (kind) {
	case cudaMemcpyHostToHost: memcpy(to, from, size); break;
	case cudaMemcpyHostToDevice: result = DRIVER(cuMemcpyHtoD)(target, from, size); break;
	case cudaMemcpyDeviceToHost: result = DRIVER(cuMemcpyDtoH)(to, source, size); break;
	case cudaMemcpyDeviceToDevice: result = DRIVER(cuMemcpyDtoD)(target, source, size); break;
	default: result = DRIVER(cuMemcpy)(target, source, size);
	}
	return cudart_result(result);
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
				   cudaStream_t stream)
{
	CUdeviceptr target = (CUdeviceptr)to, source = (CUdeviceptr)from;
	int result = cudart_context();

	if (result || !size)
		return cudart_result(result);
	switch (kind) {
	case cudaMemcpyHostToDevice: result = DRIVER(cuMemcpyHtoDAsync)(target, from, size, stream); break;
	case cudaMemcpyDeviceToHost: result = DRIVER(cuMemcpyDtoHAsync)(to, source, size, stream); break;
	case cudaMemcpyDeviceToDevice: result = DRIVER(cuMemcpyDtoDAsync)(target, source, size, stream); break;
	default: result = DRIVER(cuMemcpyAsync)(target, source, size, stream);
	}
	return cudart_result(result);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
				       cudaStream_t stream)
{
	CUcontext target = NULL, source = NULL;
	int result = cudart_context();

	if (!result)
		result = context_of(to_device, &target);
	if (!result)
		result = context_of(from_device, &source);
	return cudart_result(result ? result
				    : (int)DRIVER(cuMemcpyPeerAsync)((CUdeviceptr)to, target, (CUdeviceptr)from, source,
								     size, stream));
}

static CUDA_MEMCPY2D plane(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
			   enum cudaMemcpyKind kind)
{
	CUmemorytype device = kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;

	return (CUDA_MEMCPY2D){
		.srcMemoryType = is_of_host(kind, true) ? CU_MEMORYTYPE_HOST : device,
		.srcHost = from,
		.srcDevice = (CUdeviceptr)from,
		.srcPitch = from_pitch,
		.dstMemoryType = is_of_host(kind, false) ? CU_MEMORYTYPE_HOST : device,
		.dstHost = to,
		.dstDevice = (CUdeviceptr)to,
		.dstPitch = to_pitch,
		.WidthInBytes = width,
		.Height = height,
	};
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
				     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	CUDA_MEMCPY2D copy = plane(to, to_pitch, from, from_pitch, width, height, kind);
	RETURN(DRIVER(cuMemcpy2DAsync)(&copy, stream));
}

EXPORT cudaError_t cudaMemset(void *to, int value, size_t size)
{
	RETURN(size ? DRIVER(cuMemsetD8)((CUdeviceptr)to, (unsigned char)value, size) : 0);
}

EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream)
{
	RETURN(size ? DRIVER(cuMemsetD8Async)((CUdeviceptr)to, (unsigned char)value, size, stream) : 0);
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
	unsigned type = 0, is_managed = 0;
	int device = cudaInvalidDeviceId, result = cudart_context();
	void *on_device = NULL, *on_host = NULL;
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER};
	void *values[] = {&type, &is_managed, &device, &on_device, &on_host};

	if (!result)
		result = DRIVER(cuPointerGetAttributes)(5, names, values, (CUdeviceptr)pointer);
	if (result)
		return cudart_result(result);
	enum cudaMemoryType known = type == CU_MEMORYTYPE_HOST     ? cudaMemoryTypeHost
				    : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
								   : cudaMemoryTypeUnregistered;
	*attributes = (struct cudaPointerAttributes){
		.type = is_managed ? cudaMemoryTypeManaged : known,
		.device = type ? device : cudaInvalidDeviceId,
		.devicePointer = on_device,
		.hostPointer = type ? on_host : (void *)pointer,
	};
	return cudaSuccess;
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags)
{
	CUipcMemHandle same;

	memcpy(&same, &handle, sizeof same);
	RETURN(DRIVER(cuIpcOpenMemHandle)((CUdeviceptr *)pointer, same, flags));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
	CUipcEventHandle same;

	memcpy(&same, &handle, sizeof same);
	RETURN(DRIVER(cuIpcOpenEventHandle)(event, same));
}

/* ---- streams and events ---- */

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	RETURN(DRIVER(cuStreamCreate)(stream, 0));
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	RETURN(DRIVER(cuEventCreate)(event, 0));
}

/* ---- what is missing ---- */

int cudart_missing(const char *name)
{
	fprintf(stderr, "stand-in for libcudart: %s is missing\n", name);
	return cudart_result(cudaErrorNotSupported);
}

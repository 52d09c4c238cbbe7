/*
 * Kernels of the runtime's stand-in. A program's start registers them with their host addresses; the code
 * is loaded when one of them is first used, as the runtime does it.
 */
#define _GNU_SOURCE
#define CUDAAPI
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include "cudart.h"

/* A fat binary that a compiled file registered. */
struct binary {
	const void *image;
	CUlibrary library;
};

struct known {
	const void *host;
	struct binary *binary;
	const char *name; /* of the program, which keeps it */
	CUkernel kernel;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *entries; /* of tsearch, by host address */

static int compare(const void *a, const void *b)
{
	const char *one = ((const struct known *)a)->host, *other = ((const struct known *)b)->host;
	return one < other ? -1 : one > other;
}

static void add(void **handle, const void *host, const char *name)
{
	struct known *entry = malloc(sizeof *entry);

	if (!entry)
		abort();
	*entry = (struct known){host, (struct binary *)handle, name, NULL};
	pthread_mutex_lock(&lock);
	if (*(struct known **)tsearch(entry, &entries, compare) != entry)
		free(entry);
	pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static struct known *find(const void *host)
{
	struct known **found = (struct known **)tfind(&(struct known){.host = host}, &entries, compare);
	return found ? *found : NULL;
}

/* Under the lock. */
static int load(struct binary *binary)
{
	if (binary->library)
		return 0;
	return DRIVER(cuLibraryLoadData)(&binary->library, binary->image, NULL, NULL, 0, NULL, NULL, 0);
}

/* What is registered under no address is a handle of the driver already. */
static int find_kernel(const void *host, CUkernel *kernel)
{
	int result = cudart_context();

	if (result)
		return result;
	pthread_mutex_lock(&lock);
	struct known *entry = find(host);
	if (entry && !entry->kernel) {
		result = load(entry->binary);
		if (!result)
			result = DRIVER(cuLibraryGetKernel)(&entry->kernel, entry->binary->library, entry->name);
	}
	*kernel = entry ? entry->kernel : (CUkernel)host;
	pthread_mutex_unlock(&lock);
	return result == cudaErrorSymbolNotFound ? (int)cudaErrorInvalidDeviceFunction : result;
}

static int find_function(const void *host, CUfunction *function)
{
	CUkernel kernel;
	int result = find_kernel(host, &kernel);

	return result ? result : (int)DRIVER(cuKernelGetFunction)(function, kernel);
}

/* ---- what a compiled program calls at its start ---- */

EXPORT void **__cudaRegisterFatBinary(void *image)
{
	struct binary *binary = malloc(sizeof *binary);

	if (!binary)
		abort();
	*binary = (struct binary){image, NULL};
	return (void **)binary;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
	(void)handle;
}

EXPORT void __cudaUnregisterFatBinary(void **handle)
{
	(void)handle; /* the process ends */
}

EXPORT char __cudaInitModule(void **handle)
{
	(void)handle;
	return 1;
}

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name)
{
	(void)device;
	add(handle, host, name);
}

EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name)
{
	(void)handle;
	(void)host;
	(void)device;
	(void)name; /* no program here asks for a variable's address */
}

/* ---- launches ---- */

static __thread struct {
	dim3 grid, block;
	size_t shared;
	cudaStream_t stream;
} configurations[16];
static __thread unsigned depth;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
	if (depth == sizeof configurations / sizeof *configurations)
		return 1;
	configurations[depth].grid = grid;
	configurations[depth].block = block;
	configurations[depth].shared = shared;
	configurations[depth++].stream = stream;
	return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, cudaStream_t *stream)
{
	if (!depth)
		return cudart_result(cudaErrorMissingConfiguration);
	*grid = configurations[--depth].grid;
	*block = configurations[depth].block;
	*shared = configurations[depth].shared;
	*stream = configurations[depth].stream;
	return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
				    cudaStream_t stream)
{
	CUkernel kernel;
	int result = find_kernel(host, &kernel);

	if (!result)
		result = DRIVER(cuLaunchKernel)((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
						(unsigned)shared, stream, arguments, NULL);
	return cudart_result(result);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *given, const void *host, void **arguments)
{
	CUlaunchConfig config = {
		.gridDimX = given->gridDim.x,
		.gridDimY = given->gridDim.y,
		.gridDimZ = given->gridDim.z,
		.blockDimX = given->blockDim.x,
		.blockDimY = given->blockDim.y,
		.blockDimZ = given->blockDim.z,
		.sharedMemBytes = (unsigned)given->dynamicSmemBytes,
		.hStream = given->stream,
		.attrs = (CUlaunchAttribute *)given->attrs,
		.numAttrs = given->numAttrs,
	};
	CUkernel kernel;
	int result = find_kernel(host, &kernel);

	if (!result)
		result = DRIVER(cuLaunchKernelEx)(&config, (CUfunction)kernel, arguments, NULL);
	return cudart_result(result);
}

/* ---- questions about kernels ---- */

EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host)
{
	return cudart_result(find_function(host, function));
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host)
{
	CUfunction function;
	int result = find_function(host, &function), value;

	*attributes = (struct cudaFuncAttributes){0};
#define ATTRIBUTE(field, name) \
	if (!result && !DRIVER(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_##name, function)) \
	attributes->field = value
	ATTRIBUTE(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
	ATTRIBUTE(sharedSizeBytes, SHARED_SIZE_BYTES);
	ATTRIBUTE(constSizeBytes, CONST_SIZE_BYTES);
	ATTRIBUTE(localSizeBytes, LOCAL_SIZE_BYTES);
	ATTRIBUTE(numRegs, NUM_REGS);
	ATTRIBUTE(ptxVersion, PTX_VERSION);
	ATTRIBUTE(binaryVersion, BINARY_VERSION);
	ATTRIBUTE(maxDynamicSharedSizeBytes, MAX_DYNAMIC_SHARED_SIZE_BYTES);
	return cudart_result(result);
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value)
{
	CUfunction function;
	int result = find_function(host, &function);

	if (!result)
		result = DRIVER(cuFuncSetAttribute)(function, (CUfunction_attribute)attribute, value);
	return cudart_result(result);
}

EXPORT cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config)
{
	CUfunction function;
	int result = find_function(host, &function);

	return cudart_result(result ? result : (int)DRIVER(cuFuncSetCacheConfig)(function, (CUfunc_cache)config));
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *host, int block,
									  size_t shared, unsigned flags)
{
	CUfunction function;
	int result = find_function(host, &function);

	if (!result)
		result = DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(count, function, block, shared,
										      flags);
	return cudart_result(result);
}

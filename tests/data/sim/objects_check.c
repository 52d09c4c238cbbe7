/* Textures and surfaces, green contexts, and a few calls of newer drivers. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuDevicePrimaryCtxReset_v2(int);
int cuCtxPushCurrent_v2(handle), cuCtxPopCurrent_v2(handle *), cuCtxSynchronize(void), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr), cuArrayCreate_v2(handle *, const void *), cuArrayDestroy(handle);
int cuTexObjectCreate(ptr *, const void *, const void *, const void *), cuTexObjectDestroy(ptr);
int cuTexObjectGetResourceDesc(void *, ptr), cuTexObjectGetTextureDesc(void *, ptr), cuTexObjectGetResourceViewDesc(void *, ptr);
int cuSurfObjectCreate(ptr *, const void *), cuSurfObjectDestroy(ptr), cuSurfObjectGetResourceDesc(void *, ptr);
int cuDeviceGetDevResource(int, void *, int), cuDevResourceGenerateDesc(handle *, void *, unsigned);
int cuDevSmResourceSplitByCount(void *, unsigned *, const void *, void *, unsigned, unsigned);
int cuGreenCtxCreate(handle *, handle, int, unsigned), cuGreenCtxDestroy(handle), cuCtxFromGreenCtx(handle *, handle);
int cuGreenCtxGetDevResource(handle, void *, int), cuCtxGetDevResource(handle, void *, int), cuStreamGetGreenCtx(handle, handle *);
int cuGreenCtxStreamCreate(handle *, handle, unsigned, int), cuGreenCtxRecordEvent(handle, handle), cuGreenCtxWaitEvent(handle, handle);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle), cuStreamGetDevice(handle, int *);
int cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventElapsedTime(float *, handle, handle), cuEventDestroy_v2(handle);
int cuEventSynchronize(handle), cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuMemcpyBatchAsync(ptr *, ptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, handle);
int cuMemcpyHtoD_v2(ptr, const void *, size_t), cuMemcpyDtoH_v2(void *, ptr, size_t), cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, int, int, int, int);
int cuPointerGetAttribute(void *, int, ptr), cuCtxGetExecAffinity(int *, int), cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetManaged(ptr *, size_t *, handle, const char *), cuLibraryUnload(handle), cuMulticastCreate(handle *, const void *);

int cuImportExternalSemaphore(handle *, const void *), cuDestroyExternalSemaphore(handle), cuStreamQuery(handle);
int cuSignalExternalSemaphoresAsync(const handle *, const void *, unsigned, handle);
int cuWaitExternalSemaphoresAsync(const handle *, const void *, unsigned, handle), cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);

typedef struct {
	int type, padding;
	union {
		handle object;
		struct { ptr pointer; int format; unsigned channels; size_t bytes, height, pitch; } linear;
		int reserved[32];
	};
	unsigned flags, more;
} resource;

typedef struct { int type; unsigned char hidden[92]; unsigned count, rest[11]; } sm_resource;

static const char ptx[] =
	".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry spin_10ms() { ret; }\n";

static size_t available(void)
{
	size_t left, total;

	EXPECT(cuMemGetInfo_v2(&left, &total), OK);
	return left;
}

typedef struct { int type, padding, fd, more[3]; unsigned flags, reserved[17]; } semaphore_handle;
typedef struct { ptr value, others[8]; unsigned flags, reserved[17]; } semaphore_params;

/* A stream waits until another one, or whoever has the file, has come so far. */
static void semaphores(void)
{
	int file = memfd_create("semaphore", MFD_CLOEXEC);
	semaphore_handle timeline = {.type = 9, .fd = dup(file)}, opaque = {.type = 1, .fd = dup(file)};
	semaphore_handle windows = {.type = 4};
	semaphore_params three = {.value = 3}, four = {.value = 4}, bad = {.flags = 99};
	handle semaphore, other, waiting, signalling, graph;

	EXPECT(cuStreamCreate(&waiting, 1), OK);
	EXPECT(cuStreamCreate(&signalling, 1), OK);
	EXPECT(cuImportExternalSemaphore(&semaphore, &timeline), INVALID_VALUE); /* empty: no word in it */
	EXPECT(ftruncate(file, 4096), 0);
	EXPECT(cuImportExternalSemaphore(&semaphore, &windows), NOT_SUPPORTED);
	EXPECT(cuImportExternalSemaphore(&semaphore, &timeline), OK);
	EXPECT(cuWaitExternalSemaphoresAsync(&semaphore, &three, 1, waiting), OK);
	EXPECT(cuStreamQuery(waiting), NOT_READY);
	EXPECT(cuSignalExternalSemaphoresAsync(&semaphore, &four, 1, signalling), OK);
	EXPECT(cuStreamSynchronize(waiting), OK);
	EXPECT(cuWaitExternalSemaphoresAsync(&semaphore, &bad, 1, waiting), INVALID_VALUE);
	EXPECT(cuStreamBeginCapture_v2(waiting, 0), OK);
	EXPECT(cuWaitExternalSemaphoresAsync(&semaphore, &three, 1, waiting), NOT_SUPPORTED);
	EXPECT(cuStreamEndCapture(waiting, &graph), OK);
	EXPECT(cuDestroyExternalSemaphore(semaphore), OK);
	EXPECT(cuDestroyExternalSemaphore(semaphore), INVALID_HANDLE);

	ptr word = 0;
	EXPECT(pwrite(file, &word, sizeof word, 0), 8);
	EXPECT(cuImportExternalSemaphore(&other, &opaque), OK);
	EXPECT(cuWaitExternalSemaphoresAsync(&other, &three, 1, waiting), OK);
	EXPECT(cuDestroyExternalSemaphore(other), OK); /* the wait goes on */
	EXPECT(cuStreamQuery(waiting), NOT_READY);
	word = 1;
	EXPECT(pwrite(file, &word, sizeof word, 0), 8);
	EXPECT(cuStreamSynchronize(waiting), OK);
	EXPECT(pread(file, &word, sizeof word, 0), 8);
	EXPECT(word, 0);
	close(file);
	EXPECT(cuStreamDestroy_v2(waiting), OK);
	EXPECT(cuStreamDestroy_v2(signalling), OK);
}

static void textures(void)
{
	struct { size_t width, height; int format; unsigned channels; } shape = {64, 64, 0x20, 1};
	struct { int modes[3], filter; unsigned flags, rest[21]; } texture = {{1, 1, 1}, 1, 2, {0}};
	struct { int format; size_t width, height, depth; unsigned rest[20]; } view = {1, 64, 64, 0, {0}};
	resource of_array = {.type = 0}, linear = {.type = 2}, back;
	ptr pointer, object, surface;
	handle array;

	EXPECT(cuArrayCreate_v2(&array, &shape), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 4096), OK);
	of_array.object = array;
	linear.linear.pointer = pointer;
	linear.linear.format = 0x20;
	linear.linear.channels = 4;
	linear.linear.bytes = 4096;
	EXPECT(cuTexObjectCreate(&object, &of_array, &texture, &view), OK);
	EXPECT(cuTexObjectGetResourceDesc(&back, object), OK);
	EXPECT(back.object == array, 1);
	EXPECT(cuSurfObjectDestroy(object), INVALID_VALUE);
	EXPECT(cuTexObjectDestroy(object), OK);
	EXPECT(cuTexObjectDestroy(object), INVALID_VALUE);
	EXPECT(cuTexObjectCreate(&object, &linear, &texture, NULL), OK);
	EXPECT(cuTexObjectDestroy(object), OK);
	EXPECT(cuSurfObjectCreate(&surface, &linear), INVALID_VALUE);
	EXPECT(cuSurfObjectCreate(&surface, &of_array), OK);
	EXPECT(cuSurfObjectDestroy(surface), OK);
	linear.linear.bytes = 4097;
	EXPECT(cuTexObjectCreate(&object, &linear, &texture, NULL), INVALID_VALUE);
	EXPECT(cuMemFree_v2(pointer), OK);
	EXPECT(cuArrayDestroy(array), OK);
	EXPECT(cuTexObjectCreate(&object, &of_array, &texture, NULL), INVALID_VALUE);
}

static float kernel_time(handle function, handle stream)
{
	handle start, end;
	float elapsed = 0;

	EXPECT(cuEventCreate(&start, 0), OK);
	EXPECT(cuEventCreate(&end, 0), OK);
	EXPECT(cuEventRecord(start, stream), OK);
	EXPECT(cuLaunchKernel(function, 10000, 1, 1, 256, 1, 1, 0, stream, NULL, NULL), OK);
	EXPECT(cuEventRecord(end, stream), OK);
	EXPECT(cuEventSynchronize(end), OK);
	EXPECT(cuEventElapsedTime(&elapsed, start, end), OK);
	EXPECT(cuEventDestroy_v2(start), OK);
	EXPECT(cuEventDestroy_v2(end), OK);
	return elapsed;
}

/* A quarter of the card takes four times as long, and costs no memory. */
static void green_contexts(handle function)
{
	sm_resource all, groups[8], rest, own;
	handle resources, green, context, stream, other, event, found, popped;
	size_t before = available();
	unsigned count = 0;

	EXPECT(cuDeviceGetDevResource(0, &all, 1), OK);
	EXPECT(all.count, 40);
	EXPECT(cuDeviceGetDevResource(0, &all, 2), 914);
	EXPECT(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 9), OK);
	EXPECT(count, 4);
	count = 3;
	EXPECT(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 9), OK);
	EXPECT(count * 10000 + groups[0].count * 100 + rest.count, 31010);
	EXPECT(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 41), 915);
	memset(&own, 0, sizeof own);
	EXPECT(cuDevResourceGenerateDesc(&resources, &own, 1), 914);
	EXPECT(cuDevResourceGenerateDesc(&resources, groups, 1), OK);
	EXPECT(cuGreenCtxCreate(&green, resources, 0, 0), INVALID_VALUE);
	EXPECT(cuGreenCtxCreate(&green, resources, 0, 1), OK);
	EXPECT(available(), before);
	EXPECT(cuCtxFromGreenCtx(&context, green), OK);
	EXPECT(cuCtxGetDevResource(context, &own, 1), OK);
	EXPECT(own.count, 10);
	EXPECT(cuGreenCtxStreamCreate(&stream, green, 1, 0), OK);
	EXPECT(cuStreamGetGreenCtx(stream, &found), OK);
	EXPECT(found == green, 1);
	EXPECT(cuStreamCreate(&other, 1), OK);
	EXPECT(cuStreamGetGreenCtx(other, &found), OK);
	EXPECT(found == NULL, 1);
	float part = kernel_time(function, stream), whole = kernel_time(function, other);
	for (int i = 0; i < 3 && (part < 3 * whole || part > 5 * whole); i++) { /* this machine may be busy */
		part = kernel_time(function, stream);
		whole = kernel_time(function, other);
	}
	EXPECT(part > 3 * whole && part < 5 * whole, 1);
	EXPECT(cuEventCreate(&event, 2), OK);
	EXPECT(cuCtxPushCurrent_v2(context), OK);
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(cuCtxPopCurrent_v2(&popped), OK);
	EXPECT(cuGreenCtxDestroy(green), OK);
	EXPECT(cuGreenCtxDestroy(green), 201);
	EXPECT(cuStreamSynchronize(stream), INVALID_HANDLE);
	EXPECT(cuEventDestroy_v2(event), OK);
	EXPECT(cuStreamDestroy_v2(other), OK);
}

static void details(void)
{
	char back[64];
	unsigned char map[128] __attribute__((aligned(64)));
	struct { int order; int rest[5]; } attributes = {1, {0}};
	size_t size, indices[] = {0}, failed = 7, sizes[] = {3, 3};
	unsigned multicast[8] = {2}, flags = 0;
	handle stream;
	ptr a, b;

	EXPECT(cuMemAlloc_v2(&a, 6), OK);
	EXPECT(cuMemAlloc_v2(&b, 6), OK);
	EXPECT(cuMemcpyHtoD_v2(a, "abcdef", 6), OK);
	EXPECT(cuStreamCreate(&stream, 1), OK);
	ptr to[] = {b + 3, b}, from[] = {a, a + 3};
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, indices, 1, &failed, stream), OK);
	EXPECT(failed == (size_t)-1, 1);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(cuMemcpyDtoH_v2(back, b, 6), OK);
	EXPECT(memcmp(back, "defabc", 6), 0);
	to[1] = b + 4;
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, indices, 1, &failed, stream), INVALID_VALUE);
	EXPECT(failed, 1);
	EXPECT(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, indices, 1, &failed, NULL), INVALID_VALUE);
	EXPECT(cuPointerGetAttribute(&flags, 16, a), OK);
	EXPECT(flags, 3);
	EXPECT(cuPointerGetAttribute(&size, 18, a), OK);
	EXPECT(size >= 6, 1);
	EXPECT(cuMemFree_v2(a), OK);
	EXPECT(cuMemFree_v2(b), OK);
	EXPECT(cuStreamDestroy_v2(stream), OK);

	/* What a T4 has not. */
	EXPECT(cuTensorMapEncodeTiled(map, 0, 1, map, NULL, NULL, NULL, NULL, 0, 0, 0, 0), NOT_SUPPORTED);
	EXPECT(cuMulticastCreate(&stream, multicast), NOT_SUPPORTED);
}

int main(void)
{
	handle context, module, function;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&function, module, "spin_10ms"), OK);
	textures();
	semaphores();
	green_contexts(function);
	details();
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

/* What Hopper has, green contexts, and semaphores of other interfaces. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

typedef struct {
	int type;
	unsigned char hidden[92];
	unsigned count, rest[11];
} sm_resource;
typedef struct {
	int type, padding, fd, more[3];
	unsigned flags, reserved[17];
} semaphore_handle;
typedef struct {
	ptr value, others[8];
	unsigned flags, reserved[17];
} semaphore_params;

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry spin_10ms() { ret; }\n";

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

/* An eighth of the card takes eight times as long, and costs no memory. */
static void green_contexts(handle function)
{
	sm_resource all, groups[8], rest, own;
	handle resources, green, context, stream, other, found;
	size_t before = available();
	unsigned count = 0;

	EXPECT(cuDeviceGetDevResource(0, &all, 1), OK);
	EXPECT(all.count, 132);
	EXPECT(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 9), OK);
	EXPECT(count, 8);
	count = 3;
	EXPECT(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 9), OK);
	EXPECT(count * 10000 + groups[0].count * 100 + rest.count, 31684);
	EXPECT(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 133), 915);
	EXPECT(cuDevResourceGenerateDesc(&resources, groups, 1), OK);
	EXPECT(cuGreenCtxCreate(&green, resources, 0, 1), OK);
	EXPECT(available(), before);
	EXPECT(cuCtxFromGreenCtx(&context, green), OK);
	EXPECT(cuCtxGetDevResource(context, &own, 1), OK);
	EXPECT(own.count, 16);
	EXPECT(cuGreenCtxStreamCreate(&stream, green, 1, 0), OK);
	EXPECT(cuStreamGetGreenCtx(stream, &found), OK);
	EXPECT(found == green, 1);
	EXPECT(cuStreamCreate(&other, 1), OK);
	float part = kernel_time(function, stream), whole = kernel_time(function, other);
	for (int i = 0; i < 3 && (part < 7 * whole || part > 10 * whole); i++) { /* this machine may be busy */
		part = kernel_time(function, stream);
		whole = kernel_time(function, other);
	}
	EXPECT(part > 7 * whole && part < 10 * whole, 1);
	EXPECT(cuGreenCtxDestroy(green), OK);
	EXPECT(cuGreenCtxDestroy(green), 201);
	EXPECT(cuStreamSynchronize(stream), INVALID_HANDLE);
	EXPECT(cuStreamDestroy_v2(other), OK);
}

static void clusters(handle function)
{
	struct {
		int id, padding;
		unsigned extent[16];
	} attribute = {4, 0, {4, 1, 1}};
	struct {
		unsigned grid[3], block[3], shared;
		handle stream;
		void *attributes;
		unsigned count;
	} config = {{64, 1, 1}, {1024, 1, 1}, 0, NULL, &attribute, 1};
	int active;

	EXPECT(cuOccupancyMaxActiveClusters(&active, function, &config), OK);
	EXPECT(active, 2 * 132 / 4);
	attribute.extent[1] = 4;
	EXPECT(cuOccupancyMaxActiveClusters(&active, function, &config), 912);
}

static void tensor_maps(void)
{
	unsigned char map[192] __attribute__((aligned(64))), bytes[64] __attribute__((aligned(16)));
	uint64_t extent[] = {64, 64}, strides[] = {128};
	unsigned box[] = {32, 32}, steps[] = {1, 1};

	EXPECT(cuTensorMapEncodeTiled(map, 6, 2, bytes, extent, strides, box, steps, 0, 3, 2, 0), OK);
	EXPECT(cuTensorMapEncodeTiled(map + 8, 6, 2, bytes, extent, strides, box, steps, 0, 3, 2, 0), INVALID_VALUE);
	box[1] = 257;
	EXPECT(cuTensorMapEncodeTiled(map, 6, 2, bytes, extent, strides, box, steps, 0, 3, 2, 0), INVALID_VALUE);
	strides[0] = 8;
	EXPECT(cuTensorMapEncodeTiled(map, 6, 2, bytes, extent, strides, steps, steps, 0, 3, 2, 0), INVALID_VALUE);
}

int main(void)
{
	handle context, module, function;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&function, module, "spin_10ms"), OK);
	semaphores();
	green_contexts(function);
	clusters(function);
	tensor_maps();
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

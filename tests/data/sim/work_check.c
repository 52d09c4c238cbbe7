/* Streams, events, callbacks, graphs and capture: what happens, in which order, and what is refused. */
#include <stdlib.h>
#include <time.h>

#include "check.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuDevicePrimaryCtxReset_v2(int);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr), cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(ptr, const void *, size_t, handle), cuMemcpyDtoHAsync_v2(void *, ptr, size_t, handle);
int cuMemcpyDtoH_v2(void *, ptr, size_t), cuMemsetD8Async(ptr, unsigned char, size_t, handle);
int cuMemAllocAsync(ptr *, size_t, handle), cuMemFreeAsync(ptr, handle), cuMemGetInfo_v2(size_t *, size_t *);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle), cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned), cuEventCreate(handle *, unsigned), cuEventDestroy_v2(handle);
int cuEventRecord(handle, handle), cuEventSynchronize(handle), cuEventQuery(handle), cuCtxSynchronize(void);
int cuLaunchHostFunc(handle, void (*)(void *), void *), cuStreamAddCallback(handle, void (*)(handle, int, void *), void *, unsigned);
int cuLaunchHostFunc_ptsz(handle, void (*)(void *), void *), cuLaunchKernel_ptsz(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuModuleLoadData(handle *, const void *), cuModuleUnload(handle), cuModuleGetFunction(handle *, handle, const char *);
int cuModuleGetGlobal_v2(ptr *, size_t *, handle, const char *), cuFuncGetParamInfo(handle, size_t, size_t *, size_t *);
int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *), cuStreamIsCapturing(handle, int *);
int cuGraphGetNodes(handle, handle *, size_t *), cuGraphGetEdges(handle, handle *, handle *, size_t *), cuGraphDestroy(handle);
int cuGraphInstantiateWithFlags(handle *, handle, ptr), cuGraphLaunch(handle, handle), cuGraphExecDestroy(handle);
int cuGraphExecUpdate_v2(handle, handle, void *), cuGraphAddEmptyNode(handle *, handle, const handle *, size_t), cuGraphClone(handle *, handle);
int cuDeviceGetLuid(void *, void *, int);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, handle, int, size_t), cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetKernel(handle *, handle, const char *), cuLibraryUnload(handle);

static const char ptx[] =
	".version 8.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 table[1000];\n"
	".visible .entry spin_5ms(.param .u64 p, .param .u32 n, .param .align 16 .b8 box[48]) { ret; }\n"
	".visible .entry wait_ns(.param .u64 ns) { ret; }\n";

static handle spin, timed;
static volatile int steps;

static void step(void *expected)
{
	if (steps == (int)(size_t)expected)
		steps++;
}

static void called_back(handle stream, int status, void *expected)
{
	if (stream && status == 0)
		step(expected);
}

static int launch(handle function, handle stream, void **arguments)
{
	return cuLaunchKernel(function, 10000, 1, 1, 256, 1, 1, 0, stream, arguments, NULL);
}

static double milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void code(void)
{
	size_t offset, size;
	handle module, library, kernel;
	int blocks;
	ptr table;

	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetGlobal_v2(&table, &size, module, "table"), OK);
	EXPECT(size, 1000);
	EXPECT(cuMemFree_v2(table), INVALID_VALUE);
	EXPECT(cuModuleGetFunction(&spin, module, "spin_5ms"), OK);
	EXPECT(cuFuncGetParamInfo(spin, 2, &offset, &size), OK);
	EXPECT(offset * 100 + size, 1648);
	EXPECT(cuFuncGetParamInfo(spin, 3, &offset, &size), INVALID_VALUE);
	EXPECT(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, spin, 256, 0), OK);
	EXPECT(blocks, 4);
	EXPECT(cuModuleUnload(module), OK);
	EXPECT(cuMemsetD8Async(table, 0, 1, NULL), INVALID_VALUE);
	EXPECT(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), OK);
	EXPECT(cuLibraryGetKernel(&kernel, library, "nothing"), 500);
	EXPECT(cuLibraryGetKernel(&kernel, library, "spin_5ms"), OK);
	EXPECT(launch(kernel, NULL, NULL), OK);
	EXPECT(cuLibraryUnload(library), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&spin, module, "spin_5ms"), OK);
	EXPECT(cuModuleGetFunction(&timed, module, "wait_ns"), OK);
}

static void order(void)
{
	unsigned long long nanoseconds = 20000000;
	void *arguments[] = {&nanoseconds}, *pinned;
	handle a, b, event;
	char byte = 0;
	ptr pointer;

	EXPECT(cuStreamCreate(&a, 0), OK);
	EXPECT(cuStreamCreate(&b, 1), OK);
	EXPECT(cuEventCreate(&event, 2), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 100), OK);
	EXPECT(cuMemHostAlloc(&pinned, 100, 0), OK);
	double begin = milliseconds();
	EXPECT(launch(timed, a, arguments), OK);
	EXPECT(cuLaunchHostFunc(a, step, (void *)0), OK);
	EXPECT(cuMemsetD8Async(pointer, 7, 100, a), OK);
	EXPECT(cuMemcpyDtoHAsync_v2(pinned, pointer, 100, a), OK);
	EXPECT(cuEventRecord(event, a), OK);
	EXPECT(cuStreamWaitEvent(b, event, 0), OK);
	EXPECT(cuStreamAddCallback(b, called_back, (void *)1, 0), OK);
	EXPECT(cuEventQuery(event), NOT_READY);
	EXPECT(cuStreamQuery(b), NOT_READY);
	EXPECT(steps, 0);
	EXPECT(cuStreamSynchronize(b), OK);
	EXPECT(steps, 2);
	EXPECT(milliseconds() - begin >= 20, 1);
	EXPECT(((char *)pinned)[99], 7);
	EXPECT(cuEventQuery(event), OK);

	/* The default stream waits for blocking streams, and they for it. */
	EXPECT(launch(spin, a, NULL), OK);
	EXPECT(cuLaunchHostFunc(NULL, step, (void *)2), OK);
	EXPECT(cuLaunchHostFunc(a, step, (void *)3), OK);
	EXPECT(cuMemcpyDtoH_v2(&byte, pointer, 1), OK);
	EXPECT(byte, 7);
	EXPECT(steps, 4);

	/* A thread's own stream is not the default one: what is in the one does not hold up the other. */
	EXPECT(cuLaunchKernel_ptsz(spin, 10000, 1, 1, 256, 1, 1, 0, b, NULL, NULL), OK);
	EXPECT(cuLaunchHostFunc_ptsz(NULL, step, (void *)4), OK);
	EXPECT(cuStreamSynchronize((handle)2), OK);
	EXPECT(steps, 5);

	/* Freed in order, and a stream that goes finishes first. */
	EXPECT(launch(spin, a, NULL), OK);
	EXPECT(cuMemsetD8Async(pointer, 9, 100, a), OK);
	EXPECT(cuMemFreeAsync(pointer, a), OK);
	EXPECT(cuLaunchHostFunc(a, step, (void *)5), OK);
	EXPECT(cuStreamDestroy_v2(a), OK);
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(steps, 6);
	EXPECT(cuMemFree_v2(pointer), INVALID_VALUE);
	EXPECT(cuEventDestroy_v2(event), OK);
	EXPECT(cuStreamDestroy_v2(b), OK);
	EXPECT(cuMemFreeHost(pinned), OK);
}

static void captured(void)
{
	struct { int result; handle node, from; } info;
	handle a, b, fork, join, graph, exec, other, node;
	size_t count = 0, edges = 0;
	int capturing = -1;
	void *pinned;
	ptr pointer;

	steps = 0;
	EXPECT(cuStreamCreate(&a, 1), OK);
	EXPECT(cuStreamCreate(&b, 1), OK);
	EXPECT(cuEventCreate(&fork, 2), OK);
	EXPECT(cuEventCreate(&join, 2), OK);
	EXPECT(cuMemHostAlloc(&pinned, 100, 0), OK);
	EXPECT(cuStreamBeginCapture_v2(NULL, 0), 900);
	EXPECT(cuStreamBeginCapture_v2(a, 0), OK);
	EXPECT(cuMemAllocAsync(&pointer, 100, a), OK);
	EXPECT(cuEventRecord(fork, a), OK);
	EXPECT(cuStreamWaitEvent(b, fork, 0), OK);
	EXPECT(cuStreamIsCapturing(b, &capturing), OK);
	EXPECT(capturing, 1);
	EXPECT(cuMemsetD8Async(pointer, 3, 100, b), OK); /* its address is known, its memory is not there yet */
	EXPECT(cuMemcpyDtoHAsync_v2(pinned, pointer, 100, b), OK);
	EXPECT(cuLaunchHostFunc(b, step, (void *)0), OK);
	EXPECT(launch(spin, a, NULL), OK);
	EXPECT(cuEventRecord(join, b), OK);
	EXPECT(cuEventQuery(join), 907);
	EXPECT(cuStreamSynchronize(a), 900);
	EXPECT(cuStreamWaitEvent(a, join, 0), OK);
	EXPECT(cuMemFreeAsync(pointer, a), OK);
	EXPECT(steps, 0);
	EXPECT(cuStreamEndCapture(b, &graph), 903);
	EXPECT(cuStreamEndCapture(a, &graph), OK);
	EXPECT(cuStreamEndCapture(a, &other), 401);
	EXPECT(cuGraphGetNodes(graph, NULL, &count), OK);
	EXPECT(count, 6);
	EXPECT(cuGraphGetEdges(graph, NULL, NULL, &edges), OK);
	EXPECT(edges, 6);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	EXPECT(cuGraphLaunch(exec, a), OK);
	EXPECT(cuStreamSynchronize(a), OK);
	EXPECT(steps, 1);
	EXPECT(((char *)pinned)[99], 3);
	EXPECT(cuGraphClone(&other, graph), OK);
	EXPECT(cuGraphExecUpdate_v2(exec, other, &info), OK);
	EXPECT(cuGraphAddEmptyNode(&node, other, NULL, 0), OK);
	EXPECT(cuGraphExecUpdate_v2(exec, other, &info), 910);
	EXPECT(info.result, 2);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphLaunch(exec, a), INVALID_HANDLE);
	EXPECT(cuGraphDestroy(graph), OK);
	EXPECT(cuGraphDestroy(other), OK);

	EXPECT(cuStreamBeginCapture_v2(a, 0), OK);
	EXPECT(cuStreamDestroy_v2(a), OK);
	EXPECT(cuStreamDestroy_v2(b), OK);
	EXPECT(cuMemFreeHost(pinned), OK);
}

static void absent(void)
{
	int luid, mask;

	EXPECT(cuDeviceGetLuid(&luid, &mask, 0), NOT_SUPPORTED);
}

int main(void)
{
	handle context;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	code();
	order();
	captured();
	absent();
	EXPECT(launch(spin, NULL, NULL), OK);
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

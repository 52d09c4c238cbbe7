/* Graphs of every kind of node, branches that run side by side, stream memory operations, user objects. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <pthread.h>

#include "check.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuDevicePrimaryCtxReset_v2(int);
int cuMemAlloc_v2(ptr *, size_t), cuMemFree_v2(ptr), cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemcpyDtoH_v2(void *, ptr, size_t), cuMemsetD8_v2(ptr, unsigned char, size_t), cuCtxSynchronize(void);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle), cuStreamQuery(handle);
int cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventElapsedTime(float *, handle, handle);
int cuEventDestroy_v2(handle), cuEventQuery(handle), cuDeviceGetAttribute(int *, int, int);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuLaunchHostFunc(handle, void (*)(void *), void *);
int cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *);
int cuGraphCreate(handle *, unsigned), cuGraphDestroy(handle), cuGraphClone(handle *, handle);
int cuGraphInstantiateWithFlags(handle *, handle, ptr), cuGraphLaunch(handle, handle), cuGraphExecDestroy(handle);
int cuGraphExecUpdate_v2(handle, handle, void *), cuGraphDebugDotPrint(handle, const char *, unsigned);
int cuGraphAddNode(handle *, handle, const handle *, size_t, void *), cuGraphAddNode_v2(handle *, handle, const handle *, const void *, size_t, void *);
int cuGraphNodeSetParams(handle, void *), cuGraphExecNodeSetParams(handle, handle, void *);
int cuGraphGetEdges_v2(handle, handle *, handle *, void *, size_t *), cuGraphNodeGetType(handle, int *);
int cuGraphAddDependencies_v2(handle, const handle *, const handle *, const void *, size_t);
int cuGraphNodeGetDependentNodes_v2(handle, handle *, void *, size_t *), cuGraphBatchMemOpNodeGetParams(handle, void *);
int cuGraphMemcpyNodeGetParams(handle, void *), cuGraphKernelNodeSetAttribute(handle, int, const void *);
int cuGraphKernelNodeGetAttribute(handle, int, void *), cuGraphKernelNodeCopyAttributes(handle, handle);
int cuStreamSetAttribute(handle, int, const void *), cuStreamGetAttribute(handle, int, void *), cuStreamCopyAttributes(handle, handle);
int cuStreamWaitValue32_v2(handle, ptr, uint32_t, unsigned), cuStreamWaitValue64_v2(handle, ptr, uint64_t, unsigned);
int cuStreamWriteValue32_v2(handle, ptr, uint32_t, unsigned), cuStreamWriteValue64_v2(handle, ptr, uint64_t, unsigned);
int cuStreamWaitValue32(handle, ptr, uint32_t, unsigned), cuStreamWaitValue32_v2_ptsz(handle, ptr, uint32_t, unsigned);
int cuStreamBatchMemOp_v2(handle, unsigned, void *, unsigned);
int cuGraphConditionalHandleCreate(handle *, handle, handle, unsigned, unsigned), cuGraphDestroyNode(handle);

enum { KERNEL, MEMCPY, MEMSET, HOST, GRAPH, EMPTY, WAIT_EVENT, EVENT_RECORD, MEM_ALLOC = 10, MEM_FREE, BATCH_MEM_OP, CONDITIONAL };
enum { WAIT_32 = 1, WRITE_32, FLUSH, WAIT_64, WRITE_64, BARRIER };

typedef struct {
	size_t x, y, z, lod;
	int type, padding;
	const void *host;
	ptr device;
	void *array, *context;
	size_t pitch, height;
} side;

typedef struct {
	int operation, padding;
	ptr address, value;
	unsigned flags, more;
	ptr alias, unused;
} memop;

typedef struct {
	int type, reserved[3];
	union {
		long long room[29];
		struct { handle function; unsigned grid[3], block[3], shared; void **arguments, **extra; handle kernel, context; } kernel;
		struct { int flags, reserved; handle context; side from, to; size_t width, height, depth; } copy;
		struct { ptr to; size_t pitch; unsigned value, element; size_t width, height; handle context; } fill;
		struct { void (*function)(void *); void *argument; } host;
		handle graph, event;
		struct { int allocation, handles, location, id; char rest[72]; void *access; size_t count, bytes; ptr pointer; } memory;
		ptr pointer;
		struct { handle decider; int kind; unsigned size; handle *bodies, context; } condition;
		struct { handle context; unsigned count; memop *list; unsigned flags; } memops;
	};
	long long last;
} node_params;

_Static_assert(sizeof(memop) == 48 && sizeof(node_params) == 256, "the interface's sizes");

static const char ptx[] =
	".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry spin_20ms() { ret; }\n"
	".visible .entry spin_5ms() { ret; }\n";

static handle spin, short_spin, stream;
static int steps;

static void step(void *expected)
{
	int now = (int)(size_t)expected;

	__atomic_compare_exchange_n(&steps, &now, now + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static node_params kernel(handle function)
{
	return (node_params){.type = KERNEL, .kernel = {.function = function, .grid = {1, 1, 1}, .block = {32, 1, 1}}};
}

static float launch_time(handle exec)
{
	handle start, end;
	float elapsed = -1;

	EXPECT(cuEventCreate(&start, 0), OK);
	EXPECT(cuEventCreate(&end, 0), OK);
	EXPECT(cuEventRecord(start, stream), OK);
	EXPECT(cuGraphLaunch(exec, stream), OK);
	EXPECT(cuEventRecord(end, stream), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(cuEventElapsedTime(&elapsed, start, end), OK);
	EXPECT(cuEventDestroy_v2(start), OK);
	EXPECT(cuEventDestroy_v2(end), OK);
	return elapsed;
}

/* The shortest of three: this machine may have been busy with something else. `steps` is that of the last launch. */
static float shortest(handle exec)
{
	float best = 0;

	for (int i = 0; i < 3; i++) {
		steps = 0;
		float elapsed = launch_time(exec);
		best = i && best < elapsed ? best : elapsed;
	}
	return best;
}

/* fork -> four kernels of 20 ms -> join: one after the other they would take 80 ms. */
static void branches(void)
{
	node_params empty = {.type = EMPTY}, one = kernel(spin), host = {.type = HOST, .host = {step, (void *)0}};
	handle graph, exec, fork, join, branch[4], from[8], to[8];
	struct { unsigned char bytes[8]; } data[8];
	size_t edges = 8;

	EXPECT(cuGraphCreate(&graph, 0), OK);
	EXPECT(cuGraphAddNode(&fork, graph, NULL, 0, &empty), OK);
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphAddNode_v2(&branch[i], graph, &fork, NULL, 1, &one), OK);
	EXPECT(cuGraphAddNode(&join, graph, NULL, 0, &host), OK);
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphAddDependencies_v2(graph, &branch[i], &join, NULL, 1), OK);
	memset(data, 1, sizeof data);
	EXPECT(cuGraphGetEdges_v2(graph, from, to, data, &edges), OK);
	EXPECT(edges, 8);
	EXPECT(data[7].bytes[2], 0);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	float elapsed = shortest(exec);
	EXPECT(steps, 1);
	EXPECT(elapsed >= 20 && elapsed < 60, 1);
	one.kernel.function = short_spin;
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphExecNodeSetParams(exec, branch[i], &one), OK);
	EXPECT(shortest(exec) < elapsed, 1);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(graph), OK);
}

/* A child graph with three branches between two steps of the order. */
static void child_graphs(void)
{
	node_params one = kernel(spin), host = {.type = HOST, .host = {step, (void *)0}}, child = {.type = GRAPH};
	handle graph, inner, exec, first, middle, last, node;

	EXPECT(cuGraphCreate(&inner, 0), OK);
	for (int i = 0; i < 3; i++)
		EXPECT(cuGraphAddNode(&node, inner, NULL, 0, &one), OK);
	host.host.argument = (void *)1;
	EXPECT(cuGraphAddNode(&node, inner, &node, 1, &host), OK);
	EXPECT(cuGraphCreate(&graph, 0), OK);
	host.host.argument = (void *)0;
	EXPECT(cuGraphAddNode(&first, graph, NULL, 0, &host), OK);
	child.graph = inner;
	EXPECT(cuGraphAddNode(&middle, graph, &first, 1, &child), OK);
	host.host.argument = (void *)2;
	EXPECT(cuGraphAddNode(&last, graph, &middle, 1, &host), OK);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	float elapsed = shortest(exec);
	EXPECT(steps, 3);
	EXPECT(elapsed >= 20 && elapsed < 55, 1);
	EXPECT(cuGraphExecNodeSetParams(exec, middle, &child), OK);
	EXPECT(cuGraphAddNode(&node, inner, NULL, 0, &one), OK);
	EXPECT(cuGraphExecNodeSetParams(exec, middle, &child), INVALID_VALUE);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(graph), OK);
	EXPECT(cuGraphDestroy(inner), OK);
}

static void every_kind(void)
{
	node_params memory = {.type = MEM_ALLOC, .memory = {.allocation = 1, .location = 1, .bytes = 4096}};
	node_params fill = {.type = MEMSET, .fill = {.value = 7, .element = 1, .width = 4096, .height = 1}};
	node_params copy = {.type = MEMCPY, .copy = {.width = 4096, .height = 1, .depth = 1}};
	node_params gone = {.type = MEM_FREE}, event = {.type = EVENT_RECORD}, conditional = {.type = CONDITIONAL};
	handle graph, exec, node, done;
	unsigned char *pinned;
	char value[64] = "accepted";
	int type;

	EXPECT(cuEventCreate(&done, 2), OK);
	EXPECT(cuMemHostAlloc((void **)&pinned, 4096, 0), OK);
	EXPECT(cuGraphCreate(&graph, 0), OK);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &memory), OK);
	fill.fill.to = gone.pointer = memory.memory.pointer;
	EXPECT(cuGraphAddNode(&node, graph, &node, 1, &fill), OK);
	copy.copy.from = (side){.type = 2, .device = memory.memory.pointer, .pitch = 4096, .height = 1};
	copy.copy.to = (side){.type = 1, .host = pinned, .pitch = 4096, .height = 1};
	EXPECT(cuGraphAddNode(&node, graph, &node, 1, &copy), OK);
	EXPECT(cuGraphAddNode(&node, graph, &node, 1, &gone), OK);
	event.event = done;
	EXPECT(cuGraphAddNode(&node, graph, &node, 1, &event), OK);
	EXPECT(cuGraphNodeGetType(node, &type), OK);
	EXPECT(type, EVENT_RECORD);
	event.type = WAIT_EVENT;
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &conditional), INVALID_VALUE);
	conditional.type = 99;
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &conditional), INVALID_VALUE);
	fill.last = 1;
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &fill), INVALID_VALUE);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	EXPECT(launch_time(exec) > 0, 1);
	EXPECT(pinned[4095], 7);
	EXPECT(cuEventQuery(done), OK);

	node_params one = kernel(short_spin);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &one), OK);
	EXPECT(cuGraphKernelNodeSetAttribute(node, 8, value), OK);
	struct { int result; handle node, from; } info;
	EXPECT(cuGraphExecUpdate_v2(exec, graph, &info), 910);
	EXPECT(info.result, 2);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(graph), OK);
	EXPECT(cuMemFreeHost(pinned), OK);
	EXPECT(cuEventDestroy_v2(done), OK);
}

static void *write_later(void *word)
{
	usleep(20000);
	__atomic_store_n((uint32_t *)word, 5, __ATOMIC_RELEASE);
	return NULL;
}

static void stream_memory(void)
{
	uint32_t *word, zero = 0, got;
	handle other;
	pthread_t thread;
	ptr device;
	int can;

	steps = 0;
	EXPECT(cuDeviceGetAttribute(&can, 122, 0), OK);
	EXPECT(can, 1);
	EXPECT(cuStreamCreate(&other, 1), OK);
	EXPECT(cuMemHostAlloc((void **)&word, 4096, 0), OK);
	EXPECT(cuMemAlloc_v2(&device, 4096), OK);
	EXPECT(cuMemsetD8_v2(device, 0, 4096), OK);
	word[0] = 0;

	/* Between streams, in order: the second wait is not met by what the first one saw. */
	EXPECT(cuStreamWaitValue32_v2(stream, device, 1, 1), OK);
	EXPECT(cuStreamWriteValue32_v2(stream, device, 0, 0), OK);
	EXPECT(cuLaunchHostFunc(stream, step, (void *)0), OK);
	EXPECT(cuStreamWaitValue64_v2(stream, device + 8, 1ull << 40, 0), OK);
	EXPECT(cuLaunchHostFunc(stream, step, (void *)1), OK);
	usleep(5000);
	EXPECT(__atomic_load_n(&steps, __ATOMIC_ACQUIRE), 0);
	EXPECT(cuStreamQuery(stream), NOT_READY);
	EXPECT(cuStreamWriteValue32_v2(other, device, 1, 0), OK);
	while (!__atomic_load_n(&steps, __ATOMIC_ACQUIRE))
		usleep(100);
	usleep(2000);
	EXPECT(__atomic_load_n(&steps, __ATOMIC_ACQUIRE), 1);
	EXPECT(cuStreamWriteValue64_v2(other, device + 8, (1ull << 40) + 1, 0), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(steps, 2);
	EXPECT(cuMemcpyDtoH_v2(&got, device, 4), OK);
	EXPECT(got, 0);

	/* By a host thread, and by bits. */
	pthread_create(&thread, NULL, write_later, word);
	EXPECT(cuStreamWaitValue32(stream, (ptr)(size_t)word, 4, 2), OK);
	EXPECT(cuStreamWaitValue32_v2_ptsz(NULL, (ptr)(size_t)word, 5, 0), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(*word, 5);
	EXPECT(cuStreamSynchronize((handle)2), OK);
	pthread_join(thread, NULL);
	EXPECT(cuStreamWaitValue32_v2(stream, (ptr)(size_t)word, 0xfffffffa, 3), OK);
	EXPECT(cuStreamQuery(stream), NOT_READY); /* not (5 | ~5) has no bit */
	__atomic_store_n(word, 4, __ATOMIC_RELEASE);
	EXPECT(cuStreamSynchronize(stream), OK);

	/* In one batch, in order. */
	memop batch[] = {
		{.operation = WRITE_32, .address = device + 16, .value = 3},
		{.operation = BARRIER},
		{.operation = WAIT_32, .address = device + 16, .value = 3, .flags = 1},
		{.operation = WRITE_64, .address = device + 24, .value = 77},
	};
	EXPECT(cuStreamBatchMemOp_v2(stream, 4, batch, 0), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(cuMemcpyDtoH_v2(&got, device + 24, 4), OK);
	EXPECT(got, 77);

	EXPECT(cuStreamWaitValue32_v2(stream, device + 1, 0, 0), INVALID_VALUE);
	EXPECT(cuStreamWaitValue32_v2(stream, (ptr)(size_t)&zero, 0, 0), INVALID_VALUE);
	EXPECT(cuStreamWaitValue32_v2(stream, device, 0, 1 << 30), NOT_SUPPORTED);
	EXPECT(cuStreamWaitValue32_v2(stream, device, 0, 8), INVALID_VALUE);
	EXPECT(cuStreamBatchMemOp_v2(stream, 0, batch, 0), INVALID_VALUE);
	EXPECT(cuStreamBatchMemOp_v2(stream, 257, batch, 0), INVALID_VALUE);
	batch[0].operation = 9;
	EXPECT(cuStreamBatchMemOp_v2(stream, 1, batch, 0), INVALID_VALUE);

	/* Memory that goes is not waited for. */
	EXPECT(cuStreamWaitValue32_v2(stream, device, 12345, 1), OK);
	EXPECT(cuMemFree_v2(device), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(cuMemFreeHost(word), OK);
	EXPECT(cuStreamDestroy_v2(other), OK);
}

static void memory_nodes(void)
{
	handle graph, exec;
	uint32_t *word;

	EXPECT(cuMemHostAlloc((void **)&word, 4096, 0), OK);
	word[0] = word[1] = 0;
	ptr at = (ptr)(size_t)word;
	EXPECT(cuStreamBeginCapture_v2(stream, 0), OK);
	EXPECT(cuStreamWaitValue32_v2(stream, at, 1, 0), OK);
	EXPECT(cuStreamWriteValue32_v2(stream, at, 0, 0), OK);
	EXPECT(cuStreamEndCapture(stream, &graph), OK);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	for (int i = 0; i < 2; i++) {
		EXPECT(cuGraphLaunch(exec, stream), OK);
		EXPECT(cuStreamQuery(stream), NOT_READY);
		__atomic_store_n(word, 1, __ATOMIC_RELEASE);
		EXPECT(cuStreamSynchronize(stream), OK);
		EXPECT(word[0], 0);
	}
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(graph), OK);
	EXPECT(cuMemFreeHost(word), OK);
}

enum { IF, WHILE, SWITCH };

static node_params conditional_node(handle graph, int kind, unsigned size, unsigned value)
{
	node_params p = {.type = CONDITIONAL, .condition = {.kind = kind, .size = size}};

	EXPECT(cuGraphConditionalHandleCreate(&p.condition.decider, graph, NULL, value, 1), OK);
	return p;
}

/* How long a graph takes of one such node, with a kernel of 20 ms in its first body and one of 5 ms in the others. */
static float conditional_time(int kind, unsigned size, unsigned value, int cloned)
{
	node_params one = kernel(spin), other = kernel(short_spin), p;
	handle graph, copy, exec, node;
	int type;

	EXPECT(cuGraphCreate(&graph, 0), OK);
	p = conditional_node(graph, kind, size, value);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &p), OK);
	EXPECT(cuGraphNodeGetType(node, &type), OK);
	EXPECT(type, CONDITIONAL);
	for (unsigned i = 0; i < size; i++)
		EXPECT(cuGraphAddNode(&node, p.condition.bodies[i], NULL, 0, i ? &other : &one), OK);
	EXPECT(cuGraphClone(&copy, graph), OK);
	EXPECT(cuGraphInstantiateWithFlags(&exec, cloned ? copy : graph, 0), OK);
	float elapsed = shortest(exec);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(copy), OK);
	EXPECT(cuGraphDestroy(graph), OK);
	return elapsed;
}

/* Kernels decide nothing here: what runs is what the handle's default value says, a loop once. */
static void conditional_nodes(void)
{
	node_params host = {.type = HOST, .host = {step, (void *)0}}, outer, nested;
	handle graph, node;

	EXPECT(conditional_time(IF, 1, 1, 0) >= 20, 1);
	EXPECT(conditional_time(IF, 1, 0, 0) < 5, 1);
	float otherwise = conditional_time(IF, 2, 0, 1);
	EXPECT(otherwise >= 5 && otherwise < 20, 1);
	EXPECT(conditional_time(WHILE, 1, 7, 1) >= 20, 1);
	float third = conditional_time(SWITCH, 3, 2, 0);
	EXPECT(third >= 5 && third < 20, 1);
	EXPECT(conditional_time(SWITCH, 3, 3, 0) < 5, 1);

	EXPECT(cuGraphCreate(&graph, 0), OK);
	outer = conditional_node(graph, IF, 1, 1);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &outer), OK);
	EXPECT(cuGraphAddNode(&node, outer.condition.bodies[0], NULL, 0, &host), NOT_SUPPORTED);
	nested = conditional_node(outer.condition.bodies[0], WHILE, 1, 0);
	EXPECT(cuGraphAddNode(&node, outer.condition.bodies[0], NULL, 0, &nested), OK);
	EXPECT(cuGraphDestroy(outer.condition.bodies[0]), INVALID_VALUE);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &outer), INVALID_VALUE);
	nested = conditional_node(graph, IF, 3, 0);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &nested), INVALID_VALUE);
	nested = conditional_node(graph, WHILE, 2, 0);
	EXPECT(cuGraphAddNode(&node, graph, NULL, 0, &nested), INVALID_VALUE);
	EXPECT(cuGraphConditionalHandleCreate(&node, graph, NULL, 0, 2), INVALID_VALUE);
	EXPECT(cuGraphDestroy(graph), OK);
}

int main(void)
{
	handle context, module;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&spin, module, "spin_20ms"), OK);
	EXPECT(cuModuleGetFunction(&short_spin, module, "spin_5ms"), OK);
	EXPECT(cuStreamCreate(&stream, 0), OK);
	branches();
	child_graphs();
	conditional_nodes();
	every_kind();
	stream_memory();
	memory_nodes();
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(cuStreamDestroy_v2(stream), OK);
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

/* Streams, events, callbacks, graphs and capture: what happens, in which order, how long it takes, what is refused. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { KERNEL, HOST = 3, GRAPH, EMPTY, CONDITIONAL = 13 };
enum { WAIT_32 = 1, WRITE_32, WRITE_64 = 5, BARRIER };

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
		struct {
			handle function;
			unsigned grid[3], block[3], shared;
			void **more[4];
		} kernel;
		struct {
			void (*function)(void *);
			void *argument;
		} host;
		handle graph;
		struct {
			handle decider;
			int kind;
			unsigned size;
			handle *bodies, context;
		} condition;
	};
	long long last;
} node_params;

_Static_assert(sizeof(memop) == 48 && sizeof(node_params) == 256, "the interface's sizes");

static const char ptx[] =
	".version 8.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b8 table[1000];\n"
	"/* .entry nor_this */ .visible .entry spin_5ms(.param .u64 p, .param .u32 n, .param .align 16 .b8 box[48]) { ret; }\n"
	".visible .entry spin_20ms() { ret; }\n.visible .entry wait_ns(.param .u64 ns) { ret; }\n";

static handle spin, long_spin, timed, stream;
static int steps;

static void step(void *expected)
{
	int now = (int)(size_t)expected;

	__atomic_compare_exchange_n(&steps, &now, now + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void called_back(handle on, int status, void *expected)
{
	if (on && status == 0)
		step(expected);
}

static int launch(handle function, handle on, void **arguments)
{
	return cuLaunchKernel(function, 10000, 1, 1, 256, 1, 1, 0, on, arguments, NULL);
}

static void code(void)
{
	size_t size;
	handle module, library, kernel;
	ptr table;

	EXPECT(cuModuleLoadData(&module, "garbage"), 200);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetGlobal_v2(&table, &size, module, "table"), OK);
	EXPECT(size, 1000);
	EXPECT(cuMemFree_v2(table), INVALID_VALUE);
	EXPECT(cuModuleGetFunction(&spin, module, "spin_5ms"), OK);
	EXPECT(cuModuleUnload(module), OK);
	EXPECT(launch(spin, NULL, NULL), INVALID_HANDLE);
	EXPECT(cuMemsetD8Async(table, 0, 1, NULL), INVALID_VALUE);
	EXPECT(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), OK);
	EXPECT(cuLibraryGetKernel(&kernel, library, "spin_5ms"), OK);
	EXPECT(launch(kernel, NULL, NULL), OK);
	EXPECT(cuLibraryUnload(library), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&spin, module, "spin_5ms"), OK);
	EXPECT(cuModuleGetFunction(&long_spin, module, "spin_20ms"), OK);
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
	struct {
		int result;
		handle node, from;
	} info;
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
	node_params empty = {.type = EMPTY}, one = kernel(long_spin), host = {.type = HOST, .host = {step, (void *)0}};
	handle graph, exec, fork, join, branch[4];

	EXPECT(cuGraphCreate(&graph, 0), OK);
	EXPECT(cuGraphAddNode(&fork, graph, NULL, 0, &empty), OK);
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphAddNode_v2(&branch[i], graph, &fork, NULL, 1, &one), OK);
	EXPECT(cuGraphAddNode(&join, graph, NULL, 0, &host), OK);
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphAddDependencies_v2(graph, &branch[i], &join, NULL, 1), OK);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	float elapsed = shortest(exec);
	EXPECT(steps, 1);
	EXPECT(elapsed >= 20 && elapsed < 60, 1);
	one.kernel.function = spin;
	for (int i = 0; i < 4; i++)
		EXPECT(cuGraphExecNodeSetParams(exec, branch[i], &one), OK);
	EXPECT(shortest(exec) < elapsed, 1);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphDestroy(graph), OK);
}

/* A child graph with three branches between two steps of the order. */
static void child_graphs(void)
{
	node_params one = kernel(long_spin), host = {.type = HOST, .host = {step, (void *)0}}, child = {.type = GRAPH};
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

static void *write_later(void *word)
{
	usleep(20000);
	__atomic_store_n((uint32_t *)word, 5, __ATOMIC_RELEASE);
	return NULL;
}

static void stream_memory(void)
{
	uint32_t *word, got;
	handle other;
	pthread_t thread;
	ptr device;

	steps = 0;
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
	EXPECT(cuStreamWaitValue32_v2(stream, (ptr)(size_t)word, 4, 2), OK);
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

	/* Memory that goes is not waited for. */
	EXPECT(cuStreamWaitValue32_v2(stream, device, 12345, 1), OK);
	EXPECT(cuMemFree_v2(device), OK);
	EXPECT(cuStreamSynchronize(stream), OK);
	EXPECT(cuMemFreeHost(word), OK);
	EXPECT(cuStreamDestroy_v2(other), OK);
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
	node_params one = kernel(long_spin), other = kernel(spin), p;
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
	handle context;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	code();
	order();
	captured();
	EXPECT(cuStreamCreate(&stream, 0), OK);
	branches();
	child_graphs();
	conditional_nodes();
	stream_memory();
	EXPECT(cuDeviceGetLuid(&(int){0}, &(int){0}, 0), NOT_SUPPORTED);
	EXPECT(launch(spin, NULL, NULL), OK);
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

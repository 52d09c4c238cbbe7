/*
 * What a larger program does with a card, from several threads: `workload LIBRARY THREADS ROUNDS SIZE`. LIBRARY "-": the
 * program was linked with it. Each thread has a stream of its own, in which it sets memory, launches kernels, copies the
 * memory back and compares it, allocates in the stream's order and launches a graph that allocates for itself. Some make
 * and destroy a context of their own. Then all fill the card until a call is refused, and free everything.
 *
 * It prints the free memory before the threads begin, the bytes that they got when they filled the card, and the free
 * memory when nothing is held any more. A call that must succeed and does not ends it with a line on stderr.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long memory;

#define CALLS(CALL) \
	CALL(cuInit, (unsigned)) \
	CALL(cuDevicePrimaryCtxRetain, (handle *, int)) \
	CALL(cuCtxSetCurrent, (handle)) \
	CALL(cuCtxCreate_v2, (handle *, unsigned, int)) \
	CALL(cuCtxDestroy_v2, (handle)) \
	CALL(cuMemGetInfo_v2, (size_t *, size_t *)) \
	CALL(cuMemAlloc_v2, (memory *, size_t)) \
	CALL(cuMemFree_v2, (memory)) \
	CALL(cuMemAllocAsync, (memory *, size_t, handle)) \
	CALL(cuMemFreeAsync, (memory, handle)) \
	CALL(cuMemsetD8Async, (memory, unsigned char, size_t, handle)) \
	CALL(cuMemcpyDtoHAsync_v2, (void *, memory, size_t, handle)) \
	CALL(cuStreamCreate, (handle *, unsigned)) \
	CALL(cuStreamDestroy_v2, (handle)) \
	CALL(cuStreamSynchronize, (handle)) \
	CALL(cuEventCreate, (handle *, unsigned)) \
	CALL(cuEventRecord, (handle, handle)) \
	CALL(cuEventSynchronize, (handle)) \
	CALL(cuEventDestroy_v2, (handle)) \
	CALL(cuModuleLoadData, (handle *, const void *)) \
	CALL(cuModuleGetFunction, (handle *, handle, const char *)) \
	CALL(cuLaunchKernel, \
	     (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
	CALL(cuStreamBeginCapture_v2, (handle, int)) \
	CALL(cuStreamEndCapture, (handle, handle *)) \
	CALL(cuGraphInstantiateWithFlags, (handle *, handle, memory)) \
	CALL(cuGraphLaunch, (handle, handle)) \
	CALL(cuGraphExecDestroy, (handle)) \
	CALL(cuGraphDestroy, (handle))

#define POINTER(name, parameters) static int(*call_##name) parameters;
CALLS(POINTER)

enum { OUT_OF_MEMORY = 2, NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1, MOST_THREADS = 32, HELD = 1024 };

static const char ptx[] = ".version 6.0\n.target sm_60\n.address_size 64\n.visible .entry spin_1us() { ret; }\n";

static handle context, spin;
static long rounds;
static size_t size;
static pthread_barrier_t barrier;
static _Atomic unsigned long long filled;

static void check(int is_wrong, const char *what)
{
	if (!is_wrong)
		return;
	fprintf(stderr, "%s: %d\n", what, is_wrong);
	_exit(1);
}

#define DO(name, ...) check(call_##name(__VA_ARGS__), #name)

static size_t left(void)
{
	size_t available, total;

	DO(cuMemGetInfo_v2, &available, &total);
	return available;
}

static void launch(handle stream)
{
	DO(cuLaunchKernel, spin, 16, 1, 1, 64, 1, 1, 0, stream, NULL, NULL);
}

static void compute(handle stream, unsigned char value, unsigned char *back)
{
	memory pointer;
	handle event;

	DO(cuMemAlloc_v2, &pointer, size);
	DO(cuMemsetD8Async, pointer, value, size, stream);
	launch(stream);
	DO(cuMemcpyDtoHAsync_v2, back, pointer, size, stream);
	DO(cuEventCreate, &event, 0);
	DO(cuEventRecord, event, stream);
	DO(cuEventSynchronize, event);
	for (size_t i = 0; i < size; i += 4095)
		check(back[i] != value, "what was copied back");
	DO(cuEventDestroy_v2, event);
	DO(cuMemFree_v2, pointer);
}

static void allocate_in_order(handle stream)
{
	memory pointer;

	DO(cuMemAllocAsync, &pointer, size, stream);
	DO(cuMemsetD8Async, pointer, 1, size, stream);
	DO(cuMemFreeAsync, pointer, stream);
	DO(cuStreamSynchronize, stream);
}

static handle make_graph(handle stream)
{
	handle graph, executable;
	memory pointer;

	DO(cuStreamBeginCapture_v2, stream, CAPTURE_THREAD_LOCAL);
	DO(cuMemAllocAsync, &pointer, size, stream);
	DO(cuMemsetD8Async, pointer, 2, size, stream);
	launch(stream);
	DO(cuMemFreeAsync, pointer, stream);
	DO(cuStreamEndCapture, stream, &graph);
	DO(cuGraphInstantiateWithFlags, &executable, graph, 0);
	DO(cuGraphDestroy, graph);
	return executable;
}

static void have_a_context(void)
{
	handle own;
	memory pointer;

	DO(cuCtxCreate_v2, &own, 0, 0);
	DO(cuMemAlloc_v2, &pointer, size);
	DO(cuCtxDestroy_v2, own);
	DO(cuCtxSetCurrent, context);
}

static void fill(void)
{
	static __thread memory held[HELD];
	int count = 0, result = 0;

	while (count < HELD && !(result = call_cuMemAlloc_v2(&held[count], size)))
		count++;
	check(result != OUT_OF_MEMORY, "the call that is refused");
	filled += (unsigned long long)count * size;
	pthread_barrier_wait(&barrier);
	while (count)
		DO(cuMemFree_v2, held[--count]);
}

static void *work(void *argument)
{
	long number = (long)argument;
	unsigned char *back = malloc(size);
	handle stream, graph;

	check(!back, "malloc");
	DO(cuCtxSetCurrent, context);
	DO(cuStreamCreate, &stream, NON_BLOCKING);
	graph = make_graph(stream);
	for (long round = 0; round < rounds; round++) {
		compute(stream, (unsigned char)(number * 7 + round), back);
		allocate_in_order(stream);
		DO(cuGraphLaunch, graph, stream);
		DO(cuStreamSynchronize, stream);
		if (number % 2)
			have_a_context();
	}
	DO(cuGraphExecDestroy, graph);
	DO(cuStreamDestroy_v2, stream);
	pthread_barrier_wait(&barrier);
	fill();
	free(back);
	return NULL;
}

static void find(const char *name)
{
	handle library = strcmp(name, "-") ? dlopen(name, RTLD_NOW) : RTLD_DEFAULT;

	check(strcmp(name, "-") && !library, "dlopen");
#define FIND(name, parameters) check(!(call_##name = (int(*) parameters)dlsym(library, #name)), #name);
	CALLS(FIND)
}

int main(int count, char **words)
{
	pthread_t threads[MOST_THREADS];
	handle module;

	if (count != 5)
		return 1;
	int number = atoi(words[2]);
	rounds = atol(words[3]);
	size = (size_t)atol(words[4]);
	find(words[1]);
	DO(cuInit, 0);
	DO(cuDevicePrimaryCtxRetain, &context, 0);
	DO(cuCtxSetCurrent, context);
	DO(cuModuleLoadData, &module, ptx);
	DO(cuModuleGetFunction, &spin, module, "spin_1us");
	size_t before = left();
	pthread_barrier_init(&barrier, NULL, (unsigned)number);
	for (long i = 0; i < number; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < number; i++)
		pthread_join(threads[i], NULL);
	printf("%zu %llu %zu\n", before, (unsigned long long)filled, left());
	return 0;
}

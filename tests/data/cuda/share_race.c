/*
 * Processes whose threads share memory, map it to sparse arrays, bind it to multicast objects and launch graphs that
 * allocate, all against one limit: `share_race PROCESSES THREADS ROUNDS STEP`. Each process passes descriptors and handles
 * to the others. When all have a context it prints `ready`, and begins after a line of input. Everything is let go, then it
 * prints how many calls were granted, refused, and failed otherwise. The processes end at the end of its input.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_abi.h"

typedef void *handle;
typedef unsigned long long memory;

#define CALLS(CALL) \
	CALL(cuInit, (unsigned)) \
	CALL(cuDevicePrimaryCtxRetain, (handle *, int)) \
	CALL(cuCtxSetCurrent, (handle)) \
	CALL(cuStreamCreate, (handle *, unsigned)) \
	CALL(cuStreamSynchronize, (handle)) \
	CALL(cuStreamDestroy_v2, (handle)) \
	CALL(cuMemCreate, (memory *, size_t, const void *, memory)) \
	CALL(cuMemRelease, (memory)) \
	CALL(cuMemAlloc_v2, (memory *, size_t)) \
	CALL(cuMemFree_v2, (memory)) \
	CALL(cuMemExportToShareableHandle, (void *, memory, int, memory)) \
	CALL(cuMemImportFromShareableHandle, (memory *, void *, int)) \
	CALL(cuIpcGetMemHandle, (CUipcMemHandle *, memory)) \
	CALL(cuIpcCloseMemHandle, (memory)) \
	CALL(cuIpcOpenMemHandle_v2, (memory *, CUipcMemHandle, unsigned)) \
	CALL(cuMemAddressReserve, (memory *, size_t, size_t, memory, memory)) \
	CALL(cuMemAddressFree, (memory, size_t)) \
	CALL(cuMemMap, (memory, size_t, size_t, memory, memory)) \
	CALL(cuMemUnmap, (memory, size_t)) \
	CALL(cuArray3DCreate_v2, (handle *, const void *)) \
	CALL(cuArrayDestroy, (handle)) \
	CALL(cuMemMapArrayAsync, (CUarrayMapInfo *, unsigned, handle)) \
	CALL(cuMulticastCreate, (memory *, const void *)) \
	CALL(cuMulticastAddDevice, (memory, int)) \
	CALL(cuMulticastBindMem, (memory, size_t, memory, size_t, size_t, memory)) \
	CALL(cuMulticastUnbind, (memory, int, size_t, size_t)) \
	CALL(cuMemAllocAsync, (memory *, size_t, handle)) \
	CALL(cuMemFreeAsync, (memory, handle)) \
	CALL(cuStreamBeginCapture_v2, (handle, int)) \
	CALL(cuStreamEndCapture, (handle, handle *)) \
	CALL(cuGraphInstantiateWithFlags, (handle *, handle, memory)) \
	CALL(cuGraphLaunch, (handle, handle)) \
	CALL(cuGraphExecDestroy, (handle)) \
	CALL(cuGraphDestroy, (handle)) \
	CALL(cuCtxSynchronize, (void)) \
	CALL(cuDeviceGraphMemTrim, (int)) \
	CALL(cuMemGetInfo_v2, (size_t *, size_t *))

#define POINTER(name, parameters) static int(*call_##name) parameters;
CALLS(POINTER)

enum {
	MAX_PROCESSES = 16,
	MAX_THREADS = 16,
	HANDED = 8,
	RELAXED = 2,
	NON_BLOCKING = 1,
	DESCRIPTOR = 1,
	OUT_OF_MEMORY = 2,
	WIDTH = 1024,
	ELEMENT = 4,
};

/* What the processes have in common. */
struct common {
	CUipcMemHandle handed[HANDED]; /* handles of memory that may be freed by now */
	atomic_long granted, refused, failed;
};

struct racer {
	pthread_t thread;
	unsigned seed;
	handle stream;
};

static struct common *common;
static int mail[2]; /* descriptors on their way to whoever takes them */
static handle context;
static long rounds;
static size_t step;
static _Atomic memory open_to_all; /* a handle that one thread exports while another may release it */

static const int on_card[] = {1, 1, 1, 0, 0, 0, 0, 0};

static int count(int result)
{
	if (!result)
		common->granted++;
	else if (result == OUT_OF_MEMORY)
		common->refused++;
	else
		common->failed++;
	return result;
}

static size_t some(struct racer *racer)
{
	return step * (1 + (size_t)rand_r(&racer->seed) % 4);
}

static memory make(size_t size)
{
	memory made = 0;

	return count(call_cuMemCreate(&made, size, on_card, 0)) ? 0 : made;
}

/* ---- descriptors ---- */

static int export(memory made)
{
	int fd = -1;

	return call_cuMemExportToShareableHandle(&fd, made, DESCRIPTOR, 0) ? -1 : fd;
}

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static void post(int fd)
{
	union control control = {0};
	char byte = 0;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};

	control.header =
		(struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	(void)sendmsg(mail[0], &message, MSG_DONTWAIT);
}

static int take_mail(void)
{
	union control control = {0};
	char byte;
	struct iovec part = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	int fd;

	if (recvmsg(mail[1], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0 || !message.msg_controllen)
		return -1;
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

static void import(int fd)
{
	memory made;

	if (!count(call_cuMemImportFromShareableHandle(&made, (void *)(intptr_t)fd, DESCRIPTOR)))
		call_cuMemRelease(made);
}

static void share_by_descriptor(struct racer *racer)
{
	memory made = make(some(racer));
	int fd = made ? export(made) : -1;

	if (fd >= 0) {
		if (rand_r(&racer->seed) % 2)
			post(fd);
		else
			import(fd);
	}
	if (made)
		call_cuMemRelease(made);
	if (fd >= 0)
		close(fd);
}

static void take_descriptor(void)
{
	int fd = take_mail();

	if (fd < 0)
		return;
	import(fd);
	close(fd);
}

/* Two threads export the same memory, or one releases what another exports: the driver may refuse that, and no more. */
static void share_with_threads(struct racer *racer)
{
	memory made = atomic_load(&open_to_all);
	int fd;

	if (!made && (made = make(some(racer)))) {
		memory none = 0;
		if (!atomic_compare_exchange_strong(&open_to_all, &none, made))
			call_cuMemRelease(made);
		return;
	}
	if (made && rand_r(&racer->seed) % 3) {
		fd = export(made);
		usleep(rand_r(&racer->seed) % 64);
		if (fd >= 0)
			close(fd);
	} else if (made && atomic_compare_exchange_strong(&open_to_all, &made, 0)) {
		call_cuMemRelease(made);
	}
}

/* ---- handles by bytes ---- */

static void share_by_handle(struct racer *racer)
{
	CUipcMemHandle *place = &common->handed[rand_r(&racer->seed) % HANDED], handed;
	memory made;

	if (count(call_cuMemAlloc_v2(&made, some(racer))))
		return;
	if (!call_cuIpcGetMemHandle(&handed, made))
		memcpy(place, &handed, sizeof(handed));
	usleep(rand_r(&racer->seed) % 256);
	call_cuMemFree_v2(made);
}

/* The handle may be half of another one by now, or its memory may be gone. */
static void open_by_handle(struct racer *racer)
{
	CUipcMemHandle taken;
	memory opened;

	memcpy(&taken, &common->handed[rand_r(&racer->seed) % HANDED], sizeof(taken));
	if (call_cuIpcOpenMemHandle_v2(&opened, taken, 1))
		return;
	usleep(rand_r(&racer->seed) % 64);
	call_cuIpcCloseMemHandle(opened);
}

/* ---- mappings and bindings ---- */

static void map(struct racer *racer)
{
	size_t size = some(racer);
	memory made = make(size), address;

	if (!made)
		return;
	if (!count(call_cuMemAddressReserve(&address, size, 0, 0, 0))) {
		int mapped = count(call_cuMemMap(address, size, 0, made, 0));
		call_cuMemRelease(made);
		if (!mapped)
			call_cuMemUnmap(address, size);
		call_cuMemAddressFree(address, size);
	} else {
		call_cuMemRelease(made);
	}
}

static CUarrayMapInfo part_of(handle array, unsigned int layer, memory made)
{
	CUarrayMapInfo info = {
		.resource = array,
		.operation = made ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
		.memory = made,
		.device_mask = 1,
	};
	unsigned int words[] = {0, layer, 0, 0, 0, WIDTH, WIDTH, 1};

	memcpy(info.subresource.words, words, sizeof(words));
	return info;
}

static void map_sparse(struct racer *racer)
{
	struct {
		size_t width, height, depth;
		unsigned int format, channels, flags;
	} shape = {WIDTH, WIDTH, 0, 32, 1, CUDA_ARRAY3D_SPARSE};
	memory made = make(step * 2 > WIDTH * WIDTH * ELEMENT ? step * 2 : WIDTH * WIDTH * ELEMENT);
	handle array;

	if (!made)
		return;
	if (!count(call_cuArray3DCreate_v2(&array, &shape))) {
		CUarrayMapInfo info = part_of(array, 0, made);
		int mapped = count(call_cuMemMapArrayAsync(&info, 1, racer->stream));
		call_cuMemRelease(made);
		info = part_of(array, 0, 0);
		if (!mapped && rand_r(&racer->seed) % 2)
			count(call_cuMemMapArrayAsync(&info, 1, racer->stream));
		count(call_cuArrayDestroy(array));
	} else {
		call_cuMemRelease(made);
	}
}

static void bind_memory(struct racer *racer)
{
	struct {
		unsigned int devices, padding;
		size_t size;
		memory types, flags;
	} shape = {1, 0, step * 2, 0, 0};
	memory object, made;

	if (count(call_cuMulticastCreate(&object, &shape)))
		return;
	if (!count(call_cuMulticastAddDevice(object, 0)) && (made = make(shape.size))) {
		int bound = count(call_cuMulticastBindMem(object, 0, made, 0, shape.size, 0));
		call_cuMemRelease(made);
		if (!bound && rand_r(&racer->seed) % 2)
			count(call_cuMulticastUnbind(object, 0, 0, shape.size));
	}
	call_cuMemRelease(object);
}

/* ---- graphs ---- */

static handle make_graph(struct racer *racer)
{
	handle graph = NULL, exec = NULL;
	memory pointer = 0;

	int result = call_cuStreamBeginCapture_v2(racer->stream, RELAXED);
	int allocated = call_cuMemAllocAsync(&pointer, some(racer), racer->stream);
	if (!allocated)
		call_cuMemFreeAsync(pointer, racer->stream);
	result = call_cuStreamEndCapture(racer->stream, &graph) || result || allocated;
	if (!result && count(call_cuGraphInstantiateWithFlags(&exec, graph, 0)))
		exec = NULL;
	if (graph)
		call_cuGraphDestroy(graph);
	return exec;
}

static void launch(struct racer *racer)
{
	handle exec = make_graph(racer);

	if (!exec)
		return;
	count(call_cuGraphLaunch(exec, racer->stream));
	if (rand_r(&racer->seed) % 2)
		call_cuStreamSynchronize(racer->stream);
	call_cuGraphExecDestroy(exec);
}

/* ---- the race ---- */

static void one(struct racer *racer)
{
	size_t available, all;

	switch (rand_r(&racer->seed) % 12) {
	case 0:
	case 1: share_by_descriptor(racer); break;
	case 2: take_descriptor(); break;
	case 3:
	case 4: share_with_threads(racer); break;
	case 5: share_by_handle(racer); break;
	case 6: open_by_handle(racer); break;
	case 7: map(racer); break;
	case 8: map_sparse(racer); break;
	case 9: bind_memory(racer); break;
	case 10: launch(racer); break;
	case 11: call_cuMemGetInfo_v2(&available, &all); break;
	}
}

static void *race(void *argument)
{
	struct racer *racer = argument;

	call_cuCtxSetCurrent(context);
	call_cuStreamCreate(&racer->stream, NON_BLOCKING);
	for (long round = 0; round < rounds; round++)
		one(racer);
	call_cuStreamSynchronize(racer->stream);
	call_cuStreamDestroy_v2(racer->stream);
	return NULL;
}

/* Waits for a byte, or for the end of what writes them. */
static void await(int fd)
{
	char byte;

	while (read(fd, &byte, 1) < 0)
		;
}

static void tell(int fd)
{
	if (write(fd, "", 1) != 1)
		_exit(1);
}

static int find_calls(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return 1;
#define FIND(name, parameters) \
	if (!(call_##name = (int(*) parameters)dlsym(library, #name))) \
		return 1;
	CALLS(FIND)
	return 0;
}

static int run_process(unsigned int number, int threads, const int begin[2], int done)
{
	static struct racer racers[MAX_THREADS];
	size_t available, all;
	memory left;

	if (find_calls() || call_cuInit(0) || call_cuDevicePrimaryCtxRetain(&context, 0) ||
	    call_cuCtxSetCurrent(context))
		return 1;
	tell(done);
	await(begin[0]);
	for (int i = 0; i < threads; i++) {
		racers[i].seed = number * MAX_THREADS + (unsigned)i;
		pthread_create(&racers[i].thread, NULL, race, &racers[i]);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(racers[i].thread, NULL);
	if ((left = atomic_load(&open_to_all)))
		call_cuMemRelease(left);
	call_cuCtxSynchronize();
	call_cuDeviceGraphMemTrim(0);
	tell(done);
	await(begin[1]);
	call_cuMemGetInfo_v2(&available, &all); /* looks for descriptors that other processes have closed */
	tell(done);
	close(done);
	await(STDIN_FILENO);
	return 0;
}

static void start(int processes, int threads, int begin[2], int settle[2], int done[2])
{
	const int ways[] = {begin[0], settle[0]};

	for (int i = 0; i < processes; i++) {
		if (fork())
			continue;
		close(begin[1]);
		close(settle[1]);
		_exit(run_process((unsigned)i, threads, ways, done[1]));
	}
	close(done[1]);
}

static void await_all(int processes, int done)
{
	for (int i = 0; i < processes; i++)
		await(done);
}

int main(int argc, char **argv)
{
	int processes = argc == 5 ? atoi(argv[1]) : 0, threads = argc == 5 ? atoi(argv[2]) : 0, fd;
	int begin[2], settle[2], done[2];
	char line[16];

	if (processes < 1 || processes > MAX_PROCESSES || threads < 1 || threads > MAX_THREADS)
		return 1;
	rounds = atol(argv[3]);
	step = (size_t)atol(argv[4]);
	common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (common == MAP_FAILED || pipe(begin) || pipe(settle) || pipe(done) ||
	    socketpair(AF_UNIX, SOCK_DGRAM, 0, mail))
		return 1;
	start(processes, threads, begin, settle, done);
	await_all(processes, done[0]);
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	close(begin[1]);
	await_all(processes, done[0]);
	while ((fd = take_mail()) >= 0)
		close(fd);
	close(settle[1]);
	await_all(processes, done[0]);
	printf("%ld %ld %ld\n", atomic_load(&common->granted), atomic_load(&common->refused),
	       atomic_load(&common->failed));
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		;
	for (int i = 0, status; i < processes; i++)
		if (wait(&status) < 0 || status)
			return 1;
	return 0;
}

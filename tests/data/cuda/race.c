/*
 * Processes whose threads take memory and give it back as fast as they can, all against one limit:
 * `race KIND PROCESSES THREADS ROUNDS STEP`. KIND is
 *   pools    they allocate from pools, by graphs and plainly
 *   shares   they pass descriptors and handles to each other, map memory, also to sparse arrays, bind it to multicast
 *            objects and launch graphs that allocate
 * When all have a context it prints `ready`, and begins after a line of input. Everything is let go, then it prints how many
 * calls were granted, refused, and failed otherwise. The processes end at the end of its input.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "linked.h"

typedef unsigned long long memory;

enum {
	MAX_PROCESSES = 64,
	MAX_THREADS = 16,
	HANDED = 8,
	NON_BLOCKING = 1,
	DESCRIPTOR = 1,
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
	CUstream stream;
	CUgraphExec exec;
};

static struct common *common;
static int mail[2]; /* descriptors on their way to whoever takes them */
static bool is_about_pools;
static CUcontext context;
static CUmemoryPool pool;
static long rounds;
static size_t step;
static _Atomic memory open_to_all; /* a handle that one thread exports while another may release it */

static const CUmemAllocationProp on_card = {1, DESCRIPTOR, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};

static int count(CUresult result)
{
	if (result == CUDA_SUCCESS)
		common->granted++;
	else if (result == CUDA_ERROR_OUT_OF_MEMORY)
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

	return count(cuMemCreate(&made, size, &on_card, 0)) ? 0 : made;
}

/* ---- descriptors ---- */

static int export(memory made)
{
	int fd = -1;

	return cuMemExportToShareableHandle(&fd, made, DESCRIPTOR, 0) ? -1 : fd;
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

	if (!count(cuMemImportFromShareableHandle(&made, (void *)(intptr_t)fd, DESCRIPTOR)))
		cuMemRelease(made);
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
		cuMemRelease(made);
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
			cuMemRelease(made);
		return;
	}
	if (made && rand_r(&racer->seed) % 3) {
		fd = export(made);
		usleep(rand_r(&racer->seed) % 64);
		if (fd >= 0)
			close(fd);
	} else if (made && atomic_compare_exchange_strong(&open_to_all, &made, 0)) {
		cuMemRelease(made);
	}
}

/* ---- handles by bytes ---- */

static void share_by_handle(struct racer *racer)
{
	CUipcMemHandle *place = &common->handed[rand_r(&racer->seed) % HANDED], handed;
	memory made;

	if (count(cuMemAlloc_v2(&made, some(racer))))
		return;
	if (!cuIpcGetMemHandle(&handed, made))
		memcpy(place, &handed, sizeof(handed));
	usleep(rand_r(&racer->seed) % 256);
	cuMemFree_v2(made);
}

/* The handle may be half of another one by now, or its memory may be gone. */
static void open_by_handle(struct racer *racer)
{
	CUipcMemHandle taken;
	memory opened;

	memcpy(&taken, &common->handed[rand_r(&racer->seed) % HANDED], sizeof(taken));
	if (cuIpcOpenMemHandle_v2(&opened, taken, 1))
		return;
	usleep(rand_r(&racer->seed) % 64);
	cuIpcCloseMemHandle(opened);
}

/* ---- mappings and bindings ---- */

static void map(struct racer *racer)
{
	size_t size = some(racer);
	memory made = make(size), address;

	if (!made)
		return;
	if (!count(cuMemAddressReserve(&address, size, 0, 0, 0))) {
		int mapped = count(cuMemMap(address, size, 0, made, 0));
		cuMemRelease(made);
		if (!mapped)
			cuMemUnmap(address, size);
		cuMemAddressFree(address, size);
	} else {
		cuMemRelease(made);
	}
}

static CUarrayMapInfo part_of(CUarray array, unsigned int layer, memory made)
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
	CUDA_ARRAY3D_DESCRIPTOR shape = {WIDTH, WIDTH, 0, 32, 1, CUDA_ARRAY3D_SPARSE};
	memory made = make(step * 2 > WIDTH * WIDTH * ELEMENT ? step * 2 : WIDTH * WIDTH * ELEMENT);
	CUarray array;

	if (!made)
		return;
	if (!count(cuArray3DCreate_v2(&array, &shape))) {
		CUarrayMapInfo info = part_of(array, 0, made);
		int mapped = count(cuMemMapArrayAsync(&info, 1, racer->stream));
		cuMemRelease(made);
		info = part_of(array, 0, 0);
		if (!mapped && rand_r(&racer->seed) % 2)
			count(cuMemMapArrayAsync(&info, 1, racer->stream));
		count(cuArrayDestroy(array));
	} else {
		cuMemRelease(made);
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

	if (count(cuMulticastCreate(&object, &shape)))
		return;
	if (!count(cuMulticastAddDevice(object, 0)) && (made = make(shape.size))) {
		int bound = count(cuMulticastBindMem(object, 0, made, 0, shape.size, 0));
		cuMemRelease(made);
		if (!bound && rand_r(&racer->seed) % 2)
			count(cuMulticastUnbind(object, 0, 0, shape.size));
	}
	cuMemRelease(object);
}

/* ---- pools and graphs ---- */

static void make_graph(struct racer *racer)
{
	CUgraph graph = NULL;
	memory pointer = 0;

	int result = cuStreamBeginCapture_v2(racer->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	int allocated = cuMemAllocAsync(&pointer, some(racer), racer->stream);
	if (!allocated)
		cuMemFreeAsync(pointer, racer->stream);
	result = cuStreamEndCapture(racer->stream, &graph) || result || allocated;
	if (!result && count(cuGraphInstantiateWithFlags(&racer->exec, graph, 0)))
		racer->exec = NULL;
	if (graph)
		cuGraphDestroy(graph);
}

static void destroy_graph(struct racer *racer)
{
	if (racer->exec)
		cuGraphExecDestroy(racer->exec);
	racer->exec = NULL;
}

static void launch(struct racer *racer)
{
	if (!racer->exec)
		make_graph(racer);
	if (racer->exec)
		count(cuGraphLaunch(racer->exec, racer->stream));
	if (rand_r(&racer->seed) % 4 == 0)
		destroy_graph(racer);
}

static void allocate_from(CUmemoryPool from, struct racer *racer)
{
	memory pointer;

	if (!count(from ? cuMemAllocFromPoolAsync(&pointer, some(racer), from, racer->stream)
			: cuMemAllocAsync(&pointer, some(racer), racer->stream)))
		cuMemFreeAsync(pointer, racer->stream);
}

static void allocate(struct racer *racer)
{
	memory pointer;

	if (!count(cuMemAlloc_v2(&pointer, some(racer))))
		cuMemFree_v2(pointer);
}

static void make_pool(void)
{
	CUmemPoolProps properties = {.alloc_type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	unsigned long long keeps = ~0ull;

	cuMemPoolCreate(&pool, &properties);
	cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keeps);
}

/* ---- the race ---- */

static void share_one(struct racer *racer)
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
	case 11: cuMemGetInfo_v2(&available, &all); break;
	}
}

static void pool_one(struct racer *racer)
{
	switch (rand_r(&racer->seed) % 8) {
	case 0:
	case 1: allocate_from(NULL, racer); break;
	case 2: allocate_from(pool, racer); break;
	case 3: allocate(racer); break;
	case 4:
	case 5: launch(racer); break;
	case 6: rand_r(&racer->seed) % 2 ? cuMemPoolTrimTo(pool, 0) : cuDeviceGraphMemTrim(0); break;
	case 7: cuStreamSynchronize(racer->stream); break;
	}
}

static void *race(void *argument)
{
	struct racer *racer = argument;

	cuCtxSetCurrent(context);
	cuStreamCreate(&racer->stream, NON_BLOCKING);
	for (long round = 0; round < rounds; round++)
		is_about_pools ? pool_one(racer) : share_one(racer);
	destroy_graph(racer);
	cuStreamSynchronize(racer->stream);
	cuStreamDestroy_v2(racer->stream);
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

static int run_process(unsigned int number, int threads, const int begin[2], int done)
{
	static struct racer racers[MAX_THREADS];
	size_t available, all;
	memory left;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		return 1;
	make_pool();
	tell(done);
	await(begin[0]);
	for (int i = 0; i < threads; i++) {
		racers[i].seed = number * MAX_THREADS + (unsigned)i;
		pthread_create(&racers[i].thread, NULL, race, &racers[i]);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(racers[i].thread, NULL);
	if ((left = atomic_load(&open_to_all)))
		cuMemRelease(left);
	cuCtxSynchronize();
	cuMemPoolDestroy(pool);
	cuDeviceGraphMemTrim(0);
	tell(done);
	await(begin[1]);
	cuMemGetInfo_v2(&available, &all); /* looks for descriptors that other processes have closed */
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
	int processes = argc == 6 ? atoi(argv[2]) : 0, threads = argc == 6 ? atoi(argv[3]) : 0, fd;
	int begin[2], settle[2], done[2];
	char line[16];

	if (processes < 1 || processes > MAX_PROCESSES || threads < 1 || threads > MAX_THREADS)
		return 1;
	is_about_pools = !strcmp(argv[1], "pools");
	rounds = atol(argv[4]);
	step = (size_t)atol(argv[5]);
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

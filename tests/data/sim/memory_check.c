/* Memory of every kind: what it costs on the card, what it holds, when it goes, and what refuses it. */
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)

static const char ptx[] = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry add() { ret; }\n";

static void before_init(void)
{
	int device;
	ptr pointer;

	EXPECT(cuDeviceGet(&device, 0), NOT_INITIALIZED);
	EXPECT(cuMemAlloc_v2(&pointer, 1), NOT_INITIALIZED);
	EXPECT(cuInit(1), INVALID_VALUE);
	EXPECT(cuInit(0), OK);
	EXPECT(cuInit(0), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 1), INVALID_CONTEXT);
}

static void contexts(void)
{
	handle a, b, current;

	EXPECT(cuCtxGetCurrent(&current), OK);
	EXPECT(current == NULL, 1);
	EXPECT(cuCtxCreate_v2(&a, 0, 0), OK);
	EXPECT(cuCtxCreate_v3(&b, NULL, 0, 4, 0), OK);
	EXPECT(cuCtxGetCurrent(&current), OK);
	EXPECT(current == b, 1);
	EXPECT(cuCtxPopCurrent_v2(&current), OK);
	EXPECT(cuCtxDestroy_v2(b), OK);
	EXPECT(cuCtxDestroy_v2(b), IS_DESTROYED);
	EXPECT(cuCtxPushCurrent_v2(b), IS_DESTROYED);
	EXPECT(cuCtxDestroy_v2(a), OK);
	EXPECT(cuCtxSynchronize(), INVALID_CONTEXT);
	EXPECT(cuCtxPopCurrent_v2(&current), INVALID_CONTEXT);

	EXPECT(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
	EXPECT(cuDevicePrimaryCtxRetain(&a, 0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&b, 0), OK);
	EXPECT(a == b, 1);
	EXPECT(cuCtxSetCurrent(a), OK);
	EXPECT(cuDevicePrimaryCtxRelease_v2(0), OK);
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(cuDevicePrimaryCtxRelease_v2(0), OK);
	EXPECT(cuCtxSynchronize(), IS_DESTROYED);
	EXPECT(cuDevicePrimaryCtxRetain(&b, 0), OK);
	EXPECT(a == b, 1);
	EXPECT(cuCtxSynchronize(), OK);
}

static void plain(void)
{
	unsigned char out[1000], back[1000];
	size_t before = available();
	ptr a, b, managed;
	void *host;

	for (unsigned i = 0; i < sizeof out; i++)
		out[i] = (unsigned char)(i * 7);
	EXPECT(cuMemAlloc_v2(&a, 0), INVALID_VALUE);
	EXPECT(cuMemAlloc_v2(&a, 1000), OK);
	EXPECT(cuMemAlloc_v2(&b, 1000), OK);
	EXPECT(before - available(), 2048);
	EXPECT(cuMemcpyHtoD_v2(a, out, sizeof out), OK);
	EXPECT(cuMemcpyDtoD_v2(b, a, sizeof out), OK);
	EXPECT(cuMemcpyDtoH_v2(back, b, sizeof out), OK);
	EXPECT(memcmp(out, back, sizeof out), 0);
	EXPECT(cuMemcpyDtoH_v2(back, b + 999, 2), INVALID_VALUE);
	EXPECT(cuMemFree_v2(a + 1), INVALID_VALUE);
	EXPECT(cuMemFree_v2(a), OK);
	EXPECT(cuMemFree_v2(b), OK);
	EXPECT(cuMemcpyDtoH_v2(back, b, 1), INVALID_VALUE);

	EXPECT(cuMemAllocManaged(&managed, 100, 1), OK);
	((char *)(size_t)managed)[99] = 42;
	EXPECT(cuMemcpyDtoH_v2(back, managed, 100), OK);
	EXPECT(back[99], 42);
	EXPECT(cuMemFree_v2(managed), OK);
	EXPECT(cuMemHostAlloc(&host, 100, 1), OK);
	memset(host, 1, 100);
	EXPECT(cuMemFree_v2((ptr)(size_t)host), INVALID_VALUE);
	EXPECT(cuMemFreeHost(host), OK);
	EXPECT(cuMemHostRegister_v2(back, sizeof back, 0), OK);
	EXPECT(cuMemHostUnregister(back), OK);
	EXPECT(cuMemHostUnregister(back), NOT_REGISTERED);
	EXPECT(available(), before);
}

/* More than this machine has: only touched pages cost anything. */
static void large(void)
{
	size_t size = available() / 512 * 512;
	ptr pointer;
	char byte = 5;

	EXPECT(cuMemAlloc_v2(&pointer, size + 512), OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&pointer, (size_t)-1), OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&pointer, size), OK);
	EXPECT(cuMemcpyHtoD_v2(pointer + size - 1, &byte, 1), OK);
	byte = 0;
	EXPECT(cuMemcpyDtoH_v2(&byte, pointer + size - 1, 1), OK);
	EXPECT(byte, 5);
	EXPECT(cuMemFree_v2(pointer), OK);
}

static void pools(void)
{
	struct {
		int allocation, handles, location, id;
		char rest[72];
	} properties = {1, 0, 1, 0, {0}};
	size_t before = available();
	handle pool, other, stream;
	ptr a, b;

	EXPECT(cuStreamCreate(&stream, 1), OK);
	EXPECT(cuDeviceGetDefaultMemPool(&pool, 0), OK);
	EXPECT(cuMemPoolCreate(&other, &properties), OK);
	EXPECT(cuMemAllocAsync(&a, 4096, stream), OK);
	EXPECT(cuMemAllocFromPoolAsync(&b, 8192, other, stream), OK);
	EXPECT(cuMemPoolDestroy(pool), INVALID_VALUE);
	EXPECT(cuMemPoolDestroy(other), OK);
	EXPECT(cuMemAllocFromPoolAsync(&b, 8192, other, stream), INVALID_VALUE);
	EXPECT(before - available(), 4096 + 8192);
	EXPECT(cuMemFreeAsync(a, stream), OK);
	EXPECT(cuMemFreeAsync(b, stream), OK);
	EXPECT(available(), before);
	EXPECT(cuStreamDestroy_v2(stream), OK);
}

struct allocation_properties {
	int type, handles, location, id;
	void *windows;
	unsigned char flags[8];
};

static const struct allocation_properties pinned = {1, 1, 1, 0, NULL, {0}};
static const int read_write[3] = {1, 0, 3};

static void virtual_memory(void)
{
	size_t before = available(), granularity = 0;
	ptr range, a, b, imported;
	char out[] = "over the border", back[sizeof out] = "";
	int fd = -1;

	EXPECT(cuMemGetAllocationGranularity(&granularity, &pinned, 0), OK);
	EXPECT(granularity, 2 * MIB);
	EXPECT(cuMemAddressReserve(&range, 6 * MIB, 0, 0, 0), OK);
	EXPECT(available(), before);
	EXPECT(cuMemCreate(&a, 3, &pinned, 0), INVALID_VALUE);
	EXPECT(cuMemCreate(&a, 2 * MIB, &pinned, 0), OK);
	EXPECT(cuMemCreate(&b, 4 * MIB, &pinned, 0), OK);
	EXPECT(before - available(), 6 * MIB);
	EXPECT(cuMemMap(range, 2 * MIB, 0, a, 0), OK);
	EXPECT(cuMemMap(range, 2 * MIB, 0, b, 0), INVALID_VALUE);
	EXPECT(cuMemMap(range + 2 * MIB, 4 * MIB, 0, b, 0), OK);
	EXPECT(cuMemcpyHtoD_v2(range, out, sizeof out), INVALID_VALUE);
	EXPECT(cuMemSetAccess(range, 6 * MIB, read_write, 1), OK);
	EXPECT(cuMemcpyHtoD_v2(range + 2 * MIB - 4, out, sizeof out), OK);
	EXPECT(cuMemcpyDtoH_v2(back, range + 2 * MIB - 4, sizeof back), OK);
	EXPECT(strcmp(out, back), 0);
	EXPECT(cuMemcpyHtoD_v2(range + 6 * MIB - 4, out, sizeof out), INVALID_VALUE);
	EXPECT(cuMemFree_v2(range), INVALID_VALUE);
	EXPECT(cuMemAddressFree(range, 6 * MIB), INVALID_VALUE);

	EXPECT(cuMemExportToShareableHandle(&fd, b, 1, 0), OK);
	EXPECT(cuMemImportFromShareableHandle(&imported, (void *)(size_t)fd, 1), OK);
	EXPECT(before - available(), 6 * MIB);
	EXPECT(cuMemImportFromShareableHandle(&imported, (void *)(size_t)0, 1), INVALID_VALUE);

	EXPECT(cuMemRelease(a), OK);
	EXPECT(cuMemRelease(a), INVALID_VALUE);
	EXPECT(cuMemRelease(b), OK);
	EXPECT(before - available(), 6 * MIB);
	EXPECT(cuMemUnmap(range, 3 * MIB), INVALID_VALUE);
	EXPECT(cuMemUnmap(range, 6 * MIB), OK);
	EXPECT(before - available(), 4 * MIB);
	EXPECT(cuMemRelease(imported), OK);
	EXPECT(before - available(), 4 * MIB);
	close(fd);
	EXPECT(available(), before);
	EXPECT(cuMemAddressFree(range, 6 * MIB), OK);
	EXPECT(cuMemAddressFree(range, 6 * MIB), INVALID_VALUE);
	EXPECT(cuMemCreate(&a, 1024 * 1024 * MIB, &pinned, 0), OUT_OF_MEMORY);
}

struct array_descriptor {
	size_t width, height, depth;
	int format;
	unsigned channels, flags;
};

static void arrays(void)
{
	struct array_descriptor floats = {100, 50, 0, 0x20, 4, 0};
	size_t before = available();
	char out[64], back[64];
	handle array, mipmap, level;

	for (int i = 0; i < 64; i++)
		out[i] = (char)i;
	EXPECT(cuArray3DCreate_v2(&array, &floats), OK);
	EXPECT(before - available(), (100 * 50 * 16 + 511) / 512 * 512);
	EXPECT(cuMemcpyHtoA_v2(array, 16, out, 64), OK);
	EXPECT(cuMemcpyAtoH_v2(back, array, 16, 64), OK);
	EXPECT(memcmp(out, back, 64), 0);
	EXPECT(cuArrayDestroy(array), OK);
	EXPECT(cuArrayDestroy(array), INVALID_HANDLE);
	EXPECT(available(), before);

	struct array_descriptor bytes = {256, 256, 0, 0x01, 1, 0};
	EXPECT(cuMipmappedArrayCreate(&mipmap, &bytes, 3), OK);
	EXPECT(before - available(), 256 * 256 + 128 * 128 + 64 * 64);
	EXPECT(cuMipmappedArrayGetLevel(&level, mipmap, 2), OK);
	EXPECT(cuMemcpyHtoA_v2(level, 0, out, 64), OK);
	EXPECT(cuArrayDestroy(level), INVALID_HANDLE);
	EXPECT(cuMipmappedArrayDestroy(mipmap), OK);
	EXPECT(available(), before);
}

static void kept_by_a_pool(void)
{
	unsigned long long keep = 1 << 20, value = 0;
	size_t before = available();
	handle pool;
	ptr a, b;

	EXPECT(cuDeviceGetDefaultMemPool(&pool, 0), OK);
	EXPECT(cuMemPoolSetAttribute(pool, 4, &keep), OK);
	EXPECT(cuMemAllocAsync(&a, 1 << 20, NULL), OK);
	EXPECT(cuMemAllocAsync(&b, 1 << 20, NULL), OK);
	EXPECT(cuMemFreeAsync(a, NULL), OK);
	EXPECT(cuMemFreeAsync(a, NULL), INVALID_VALUE);
	EXPECT(cuMemFreeAsync(b, NULL), OK);
	EXPECT(before - available(), 1 << 20);
	EXPECT(cuMemPoolGetAttribute(pool, 5, &value), OK);
	EXPECT(value, 1 << 20);
	EXPECT(cuMemPoolGetAttribute(pool, 7, &value), OK);
	EXPECT(value, 0);
	EXPECT(cuMemAllocAsync(&a, 1 << 20, NULL), OK);
	EXPECT(before - available(), 1 << 20);
	EXPECT(cuMemFree_v2(a), OK);
	EXPECT(cuMemPoolTrimTo(pool, 0), OK);
	EXPECT(available(), before);
	keep = 0;
	EXPECT(cuMemPoolSetAttribute(pool, 4, &keep), OK);
}

struct node_properties {
	int type, handles, location, id;
	char rest[72];
	const void *access;
	size_t count, bytes;
	ptr pointer;
};

static void graph_memory(void)
{
	struct node_properties node = {.type = 1, .location = 1, .bytes = 4 * MIB};
	size_t before = available();
	handle graph, alloc, release, exec, again;
	unsigned long long value = 0;

	EXPECT(cuGraphCreate(&graph, 0), OK);
	EXPECT(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &node), OK);
	EXPECT(cuGraphInstantiateWithFlags(&again, graph, 0), OK);
	EXPECT(cuGraphAddMemFreeNode(&release, graph, &alloc, 1, node.pointer), OK);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), OK);
	EXPECT(available(), before);
	EXPECT(cuGraphLaunch(exec, NULL), OK);
	EXPECT(before - available(), 4 * MIB);
	EXPECT(cuGraphLaunch(exec, NULL), OK);
	EXPECT(before - available(), 4 * MIB);
	EXPECT(cuDeviceGetGraphMemAttribute(0, 0, &value), OK);
	EXPECT(value, 0);
	EXPECT(cuDeviceGetGraphMemAttribute(0, 2, &value), OK);
	EXPECT(value, 4 * MIB);
	EXPECT(cuDeviceGraphMemTrim(0), OK);
	EXPECT(available(), before);

	EXPECT(cuGraphLaunch(again, NULL), OK);
	EXPECT(cuStreamSynchronize(NULL), OK);
	EXPECT(cuMemsetD8_v2(node.pointer, 1, 4 * MIB), OK);
	EXPECT(cuGraphLaunch(again, NULL), INVALID_VALUE);
	EXPECT(cuDeviceGraphMemTrim(0), OK);
	EXPECT(before - available(), 4 * MIB);
	EXPECT(cuMemFree_v2(node.pointer), OK);
	EXPECT(cuGraphLaunch(again, NULL), OK);
	EXPECT(cuStreamSynchronize(NULL), OK);
	EXPECT(cuMemFreeAsync(node.pointer, NULL), OK);
	EXPECT(cuStreamSynchronize(NULL), OK);
	EXPECT(cuDeviceGraphMemTrim(0), OK);
	EXPECT(available(), before);
	EXPECT(cuGraphExecDestroy(exec), OK);
	EXPECT(cuGraphExecDestroy(again), OK);
	EXPECT(cuGraphDestroy(graph), OK);
}

static void what_dies_with_a_context(void)
{
	handle context, module;
	size_t before = available();
	ptr pointer;

	EXPECT(cuCtxCreate_v2(&context, 0, 0), OK);
	EXPECT(cuMemAlloc_v2(&pointer, 1 << 20), OK);
	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuCtxDestroy_v2(context), OK);
	EXPECT(available(), before);
	EXPECT(cuModuleUnload(module), INVALID_HANDLE);
	EXPECT(cuMemAlloc_v2(&pointer, 1 << 20), OK);
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	EXPECT(cuMemFree_v2(pointer), INVALID_VALUE);
}

int main(void)
{
	before_init();
	contexts();
	plain();
	large();
	pools();
	virtual_memory();
	arrays();
	kept_by_a_pool();
	graph_memory();
	what_dies_with_a_context();
	return failures;
}

/* Every kind of memory beyond cuMemAlloc: what it costs on the card, what it holds, and when it goes. */
#include <unistd.h>

#include "check.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuDevicePrimaryCtxReset_v2(int);
int cuMemGetInfo_v2(size_t *, size_t *), cuMemFree_v2(ptr), cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, ptr, size_t), cuMemsetD32_v2(ptr, unsigned, size_t), cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuMemAddressReserve(ptr *, size_t, size_t, ptr, ptr), cuMemAddressFree(ptr, size_t), cuMemCreate(ptr *, size_t, const void *, ptr);
int cuMemRelease(ptr), cuMemMap(ptr, size_t, size_t, ptr, ptr), cuMemUnmap(ptr, size_t), cuMemSetAccess(ptr, size_t, const void *, size_t);
int cuMemExportToShareableHandle(void *, ptr, int, ptr), cuMemImportFromShareableHandle(ptr *, void *, int);
int cuMemGetAllocationGranularity(size_t *, const void *, int);
int cuArray3DCreate_v2(handle *, const void *), cuArrayCreate_v2(handle *, const void *), cuArrayDestroy(handle);
int cuMipmappedArrayCreate(handle *, const void *, unsigned), cuMipmappedArrayGetLevel(handle *, handle, unsigned);
int cuMipmappedArrayDestroy(handle), cuMemcpyHtoA_v2(handle, size_t, const void *, size_t);
int cuMemcpyAtoH_v2(void *, handle, size_t, size_t), cuMemcpy2D_v2(const void *), cuMemcpy3D_v2(const void *);
int cuDeviceGetDefaultMemPool(handle *, int), cuMemPoolSetAttribute(handle, int, void *), cuMemPoolGetAttribute(handle, int, void *);
int cuMemAllocAsync(ptr *, size_t, handle), cuMemFreeAsync(ptr, handle), cuMemPoolTrimTo(handle, size_t);
int cuGraphCreate(handle *, unsigned), cuGraphDestroy(handle), cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, void *);
int cuGraphAddMemFreeNode(handle *, handle, const handle *, size_t, ptr), cuGraphInstantiateWithFlags(handle *, handle, ptr);
int cuGraphLaunch(handle, handle), cuGraphExecDestroy(handle), cuDeviceGraphMemTrim(int), cuStreamSynchronize(handle);
int cuDeviceGetGraphMemAttribute(int, int, void *), cuMemAlloc_v2(ptr *, size_t);

#define MIB ((size_t)1 << 20)

static size_t available(void)
{
	size_t free_bytes = 0, total;

	EXPECT(cuStreamSynchronize(NULL), OK);
	EXPECT(cuMemGetInfo_v2(&free_bytes, &total), OK);
	return free_bytes;
}

struct allocation_properties { int type, handles, location, id; void *windows; unsigned char flags[8]; };

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

struct array_descriptor { size_t width, height, depth; int format; unsigned channels, flags; };
struct plane_copy {
	size_t from_x, from_y; int from_type; const void *from_host; ptr from_device; handle from_array; size_t from_pitch;
	size_t to_x, to_y; int to_type; void *to_host; ptr to_device; handle to_array; size_t to_pitch, width, height;
};

static void arrays(void)
{
	struct array_descriptor floats = {100, 50, 0, 0x20, 4, 0}, bad = {100, 50, 0, 0x77, 4, 0};
	size_t before = available();
	char out[64], back[64];
	handle array, mipmap, level;
	ptr line;

	for (int i = 0; i < 64; i++)
		out[i] = (char)i;
	EXPECT(cuArray3DCreate_v2(&array, &bad), INVALID_VALUE);
	EXPECT(cuArray3DCreate_v2(&array, &floats), OK);
	EXPECT(before - available(), (100 * 50 * 16 + 511) / 512 * 512);
	EXPECT(cuMemcpyHtoA_v2(array, 16, out, 64), OK);
	EXPECT(cuMemcpyAtoH_v2(back, array, 16, 64), OK);
	EXPECT(memcmp(out, back, 64), 0);
	/* A box of 16 bytes by 4 rows into the middle of it, and out into a line of device memory with a pitch of 32. */
	struct plane_copy into = {0, 0, 1, out, 0, NULL, 16, 32, 7, 3, NULL, 0, array, 0, 16, 4};
	EXPECT(cuMemcpy2D_v2(&into), OK);
	EXPECT(cuMemAlloc_v2(&line, 512), OK);
	struct plane_copy away = {32, 8, 3, NULL, 0, array, 0, 0, 0, 2, NULL, line, NULL, 32, 16, 3};
	EXPECT(cuMemcpy2D_v2(&away), OK);
	EXPECT(cuMemcpyDtoH_v2(back, line + 32, 16), OK);
	EXPECT(memcmp(out + 32, back, 16), 0);
	away.height = 100;
	EXPECT(cuMemcpy2D_v2(&away), INVALID_VALUE);
	EXPECT(cuMemFree_v2(line), OK);
	EXPECT(cuArrayDestroy(array), OK);
	EXPECT(cuArrayDestroy(array), INVALID_HANDLE);
	EXPECT(available(), before);

	struct array_descriptor bytes = {256, 256, 0, 0x01, 1, 0};
	EXPECT(cuMipmappedArrayCreate(&mipmap, &bytes, 3), OK);
	EXPECT(before - available(), 256 * 256 + 128 * 128 + 64 * 64);
	EXPECT(cuMipmappedArrayGetLevel(&level, mipmap, 3), INVALID_VALUE);
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

struct node_properties { int type, handles, location, id; char rest[72]; const void *access; size_t count, bytes; ptr pointer; };

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

int main(void)
{
	handle context;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	virtual_memory();
	arrays();
	kept_by_a_pool();
	graph_memory();
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

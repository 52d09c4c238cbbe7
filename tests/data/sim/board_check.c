/* What Hopper's cards on a board with NVSwitches have: multicast objects, clusters, tensor maps. */
#include <stdint.h>

#include "check.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuDevicePrimaryCtxReset_v2(int);
int cuCtxSynchronize(void), cuDeviceGetAttribute(int *, int, int), cuMemGetInfo_v2(size_t *, size_t *), cuMemCreate(handle *, size_t, const void *, ptr);
int cuMemRelease(handle), cuMemAddressReserve(ptr *, size_t, size_t, ptr, ptr), cuMemAddressFree(ptr, size_t);
int cuMemMap(ptr, size_t, size_t, handle, ptr), cuMemUnmap(ptr, size_t), cuMemSetAccess(ptr, size_t, const void *, size_t);
int cuMulticastCreate(handle *, const void *), cuMulticastAddDevice(handle, int), cuMulticastUnbind(handle, int, size_t, size_t);
int cuMulticastBindMem(handle, size_t, handle, size_t, size_t, ptr), cuMulticastBindAddr(handle, size_t, ptr, size_t, ptr);
int cuMulticastGetGranularity(size_t *, const void *, int), cuMemsetD8_v2(ptr, unsigned char, size_t);
int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *, const unsigned *, int, int, int, int);
int cuTensorMapReplaceAddress(void *, void *), cuModuleLoadData(handle *, const void *), cuModuleGetFunction(handle *, handle, const char *);
int cuOccupancyMaxPotentialClusterSize(int *, handle, const void *), cuOccupancyMaxActiveClusters(int *, handle, const void *);

#define SIZE ((size_t)2 << 20)

typedef struct { int type, handles, location, id; void *meta; unsigned char flags[8]; } memory_properties;

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static size_t available(void)
{
	size_t left, total;

	EXPECT(cuMemGetInfo_v2(&left, &total), OK);
	return left;
}

static void multicast(void)
{
	struct { unsigned devices; size_t size; ptr handles, flags; } properties = {2, SIZE, 1, 0};
	memory_properties first = {1, 1, 1, 0, NULL, {0}}, second = {1, 1, 1, 1, NULL, {0}};
	struct { int location, id, flags; } access = {1, 0, 3};
	size_t before = available(), granularity;
	handle object, a, b;
	ptr pointer;
	int can;

	EXPECT(cuDeviceGetAttribute(&can, 132, 0), OK);
	EXPECT(can, 1);
	EXPECT(cuMulticastGetGranularity(&granularity, &properties, 1), OK);
	EXPECT(granularity, SIZE);
	EXPECT(cuMulticastCreate(&object, &properties), OK);
	EXPECT(available(), before);
	EXPECT(cuMemCreate(&a, SIZE, &first, 0), OK);
	EXPECT(cuMemCreate(&b, SIZE, &second, 0), OK);
	EXPECT(cuMulticastAddDevice(a, 0), INVALID_VALUE);
	EXPECT(cuMulticastAddDevice(object, 0), OK);
	EXPECT(cuMulticastAddDevice(object, 0), INVALID_VALUE);
	EXPECT(cuMulticastBindMem(object, 0, a, 0, SIZE, 0), 401);
	EXPECT(cuMulticastAddDevice(object, 1), OK);
	EXPECT(cuMulticastAddDevice(object, 2), INVALID_VALUE);
	EXPECT(cuMulticastBindMem(object, 0, a, 0, SIZE, 0), OK);
	EXPECT(cuMulticastBindMem(object, 0, a, 0, SIZE, 0), INVALID_VALUE);
	EXPECT(cuMulticastBindMem(object, 0, object, 0, SIZE, 0), INVALID_VALUE);
	EXPECT(cuMulticastBindMem(object, 0, b, 0, SIZE, 0), OK);
	EXPECT(cuMemAddressReserve(&pointer, SIZE, 0, 0, 0), OK);
	EXPECT(cuMemMap(pointer, SIZE, 0, object, 0), OK);
	EXPECT(cuMemSetAccess(pointer, SIZE, &access, 1), OK);
	EXPECT(cuMemsetD8_v2(pointer, 1, SIZE), OK);
	EXPECT(cuCtxSynchronize(), OK);
	EXPECT(cuMemUnmap(pointer, SIZE), OK);

	/* Bound memory is paid for until it is unbound, or the object is gone. */
	EXPECT(cuMemRelease(a), OK);
	EXPECT(before - available(), SIZE);
	EXPECT(cuMulticastUnbind(object, 0, 0, SIZE), OK);
	EXPECT(cuMulticastUnbind(object, 0, 0, SIZE), INVALID_VALUE);
	EXPECT(available(), before);
	EXPECT(cuMemCreate(&a, SIZE, &first, 0), OK);
	EXPECT(cuMemMap(pointer, SIZE, 0, a, 0), OK);
	EXPECT(cuMulticastBindAddr(object, 0, pointer, SIZE, 0), OK);
	EXPECT(cuMemUnmap(pointer, SIZE), OK);
	EXPECT(cuMemAddressFree(pointer, SIZE), OK);
	EXPECT(cuMemRelease(a), OK);
	EXPECT(cuMemRelease(b), OK);
	EXPECT(before - available(), SIZE);
	EXPECT(cuMemRelease(object), OK);
	EXPECT(available(), before);
	properties.size = 1;
	EXPECT(cuMulticastCreate(&object, &properties), INVALID_VALUE);
}

static void clusters(void)
{
	struct { int id, padding; unsigned extent[16]; } attribute = {4, 0, {4, 1, 1}};
	struct { unsigned grid[3], block[3], shared; handle stream; void *attributes; unsigned count; } config = {
		{64, 1, 1}, {1024, 1, 1}, 0, NULL, &attribute, 1};
	handle module, function;
	int active;

	EXPECT(cuModuleLoadData(&module, ptx), OK);
	EXPECT(cuModuleGetFunction(&function, module, "nothing"), OK);
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
	handle context;

	EXPECT(cuInit(0), OK);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0), OK);
	EXPECT(cuCtxSetCurrent(context), OK);
	multicast();
	clusters();
	tensor_maps();
	EXPECT(cuDevicePrimaryCtxReset_v2(0), OK);
	return failures;
}

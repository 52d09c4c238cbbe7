#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "memory.h"
#include "protocol.h"

#define MIB ((uint64_t)1 << 20)
#define MAX_HELD 65536
#define UINT32_FORMAT 3 /* CU_AD_FORMAT_UNSIGNED_INT32 */
#define CHANNELS 4
#define TEXEL (CHANNELS * sizeof(uint32_t))
#define READ_AND_WRITE 3

struct held {
	const struct kind *kind; /* NULL: it is free */
	uint64_t bytes;
	CUdeviceptr pointer;
	void *object, *other;
};

struct kind {
	const char *name;
	CUresult (*take)(struct held *held);
	CUresult (*give)(struct held *held);
};

static struct held held[MAX_HELD];
static unsigned held_count; /* of which some are free */

static CUresult give_pointer(struct held *held)
{
	return cu.cuMemFree_v2(held->pointer);
}

static CUresult take_device(struct held *held)
{
	return cu.cuMemAlloc_v2(&held->pointer, held->bytes);
}

/* Rows of 1 MiB, whose pitch is their width, or one row. */
static CUresult take_pitch(struct held *held)
{
	bool whole = held->bytes % MIB == 0;
	size_t pitch = 0, rows = whole ? held->bytes / MIB : 1;
	CUresult result = cu.cuMemAllocPitch_v2(&held->pointer, &pitch, whole ? MIB : held->bytes, rows, 4);

	held->bytes = pitch * rows;
	return result;
}

static CUresult take_managed(struct held *held)
{
	return cu.cuMemAllocManaged(&held->pointer, held->bytes, CU_MEM_ATTACH_GLOBAL);
}

/* Layers of 1 MiB, or of as many more as it takes to have at most 2,048 of them; else one row. */
static CUresult take_array(struct held *held)
{
	size_t edge = 256;

	while (held->bytes / (edge * edge * TEXEL) > 2048)
		edge *= 2;
	CUDA_ARRAY3D_DESCRIPTOR wanted = {edge, edge, held->bytes / (edge * edge * TEXEL), UINT32_FORMAT, CHANNELS, 0};
	if (held->bytes < MIB)
		wanted.width = (held->bytes + TEXEL - 1) / TEXEL, wanted.height = wanted.depth = 0;
	held->bytes = wanted.width * (wanted.height ? wanted.height : 1) * (wanted.depth ? wanted.depth : 1) * TEXEL;
	return cu.cuArray3DCreate_v2((CUarray *)&held->object, &wanted);
}

static CUresult give_array(struct held *held)
{
	return cu.cuArrayDestroy(held->object);
}

static CUresult take_pool(struct held *held)
{
	CUresult result = cu.cuMemAllocAsync(&held->pointer, held->bytes, driver_card.stream);

	return result ? result : cu.cuStreamSynchronize(driver_card.stream);
}

static CUresult give_pool(struct held *held)
{
	CUresult result = cu.cuMemFreeAsync(held->pointer, driver_card.stream);

	return result ? result : cu.cuStreamSynchronize(driver_card.stream);
}

static CUresult map(struct held *held, const CUmemAllocationProp *wanted)
{
	CUmemAccessDesc access = {.location = wanted->location, .flags = READ_AND_WRITE};
	CUmemGenericAllocationHandle handle;
	CUresult result = cu.cuMemCreate(&handle, held->bytes, wanted, 0);

	if (result)
		return result;
	result = cu.cuMemMap(held->pointer, held->bytes, 0, handle, 0);
	cu.cuMemRelease(handle); /* the mapping keeps the memory */
	if (!result && (result = cu.cuMemSetAccess(held->pointer, held->bytes, &access, 1)))
		cu.cuMemUnmap(held->pointer, held->bytes);
	return result;
}

static CUresult take_mapping(struct held *held)
{
	CUmemAllocationProp wanted = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_card.device}};
	size_t unit = 0;
	CUresult result = cu.cuMemGetAllocationGranularity(&unit, &wanted, 0);

	if (result || !unit)
		return result ? result : CUDA_ERROR_UNKNOWN;
	held->bytes = (held->bytes + unit - 1) / unit * unit;
	result = cu.cuMemAddressReserve(&held->pointer, held->bytes, 0, 0, 0);
	if (!result && (result = map(held, &wanted)))
		cu.cuMemAddressFree(held->pointer, held->bytes);
	return result;
}

static CUresult give_mapping(struct held *held)
{
	CUresult result = cu.cuMemUnmap(held->pointer, held->bytes);

	return result ? result : cu.cuMemAddressFree(held->pointer, held->bytes);
}

static CUresult give_graph(struct held *held)
{
	CUresult result = held->pointer ? cu.cuMemFree_v2(held->pointer) : CUDA_SUCCESS;

	if (held->object)
		cu.cuGraphExecDestroy(held->object);
	cu.cuGraphDestroy(held->other);
	cu.cuDeviceGraphMemTrim(driver_card.device);
	return result;
}

static CUresult run_graph(struct held *held, CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
	CUgraphNode node;
	CUresult result = cu.cuGraphAddMemAllocNode(&node, held->other, NULL, 0, wanted);

	if (!result)
		result = cu.cuGraphInstantiateWithFlags((CUgraphExec *)&held->object, held->other, 0);
	if (!result)
		result = cu.cuGraphLaunch(held->object, driver_card.stream);
	if (!result)
		result = cu.cuStreamSynchronize(driver_card.stream);
	return result;
}

static CUresult take_graph(struct held *held)
{
	CUDA_MEM_ALLOC_NODE_PARAMS wanted = {
		.pool_props = {.alloc_type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, driver_card.device}},
		.bytesize = held->bytes,
	};
	CUresult result = cu.cuGraphCreate((CUgraph *)&held->other, 0);

	if (result)
		return result;
	result = run_graph(held, &wanted);
	if (!result)
		held->pointer = wanted.dptr;
	else
		give_graph(held);
	return result;
}

static const struct kind kinds[] = {
	{"device", take_device, give_pointer},   {"pitch", take_pitch, give_pointer},
	{"managed", take_managed, give_pointer}, {"array", take_array, give_array},
	{"pool", take_pool, give_pool},          {"mapping", take_mapping, give_mapping},
	{"graph", take_graph, give_graph},
};

static const struct kind *kind_of(const char *name)
{
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	protocol_error("%s: there is no such kind of memory", name);
	return NULL;
}

static CUresult take(const struct kind *kind, uint64_t bytes, unsigned *id)
{
	for (*id = 0; *id < held_count && held[*id].kind; ++*id)
		;
	if (*id == MAX_HELD)
		return CUDA_ERROR_UNKNOWN;
	held[*id] = (struct held){.bytes = bytes};
	CUresult result = kind->take(&held[*id]);
	if (!result)
		held[*id].kind = kind;
	if (*id == held_count)
		held_count++;
	return result;
}

static CUresult give(struct held *what)
{
	CUresult result = what->kind->give(what);

	what->kind = NULL;
	return result;
}

void memory_alloc(void)
{
	const struct kind *kind = kind_of(protocol_text("KIND"));
	unsigned id;

	if (!kind)
		return;
	CUresult result = take(kind, protocol_number("BYTES"), &id);
	protocol_begin();
	protocol_add("code", result);
	if (!result) {
		protocol_add("id", id);
		protocol_add("bytes", held[id].bytes);
	}
	protocol_end();
}

void memory_fill(void)
{
	const struct kind *kind = kind_of(protocol_text("KIND"));
	uint64_t bytes = 0, count = 0;
	CUresult result = CUDA_SUCCESS;
	size_t available = 0, total = 0;
	unsigned id;

	if (!kind)
		return;
	cu.cuMemGetInfo_v2(&available, &total);
	for (uint64_t step = protocol_number("STEP"); step && step >= protocol_number("least"); step /= 2)
		while (bytes < 2 * total && !(result = take(kind, step, &id))) { /* managed memory may have no end */
			bytes += held[id].bytes;
			count++;
		}
	protocol_begin();
	protocol_add("code", result);
	protocol_add("bytes", bytes);
	protocol_add("count", count);
	protocol_end();
}

void memory_free(void)
{
	bool all = strcmp(protocol_text("ID"), "all") == 0;
	uint64_t id = protocol_number("ID");
	CUresult result = CUDA_SUCCESS;

	if (!all && (id >= held_count || !held[id].kind)) {
		protocol_error("free: nothing is held as %s", protocol_text("ID"));
		return;
	}
	for (unsigned i = 0; i < held_count; i++)
		if (held[i].kind && (all || i == id)) {
			CUresult given = give(&held[i]);
			result = result ? result : given;
		}
	protocol_code(result);
}

/* See compute/copy_kind.h. */
#include "compute/copy_kind.h"

#include <stdbool.h>

#include "driver/cuda_table.h"

static struct copy_kind described(bool stays, uint64_t size)
{
	return stays ? (struct copy_kind){.within = size} : (struct copy_kind){.outside = size};
}

struct copy_kind copy_kind_bus(uint64_t size)
{
	return described(false, size);
}

struct copy_kind copy_kind_card(uint64_t size)
{
	return described(true, size);
}

/* A pointer of which the driver has no record counts as lying on the call's card. */
static bool on_one_card(CUdeviceptr to, CUdeviceptr from)
{
	int one = 0, other = 0;

	return REAL(cuPointerGetAttribute, &one, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, to) != CUDA_SUCCESS ||
	       REAL(cuPointerGetAttribute, &other, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, from) != CUDA_SUCCESS ||
	       one == other;
}

struct copy_kind copy_kind_devices(CUdeviceptr to, CUdeviceptr from, uint64_t size)
{
	return described(on_one_card(to, from), size);
}

/* The driver has a record of host memory only where it allocated or registered that memory. */
static bool is_device(CUdeviceptr pointer)
{
	unsigned int type = CU_MEMORYTYPE_HOST;

	return REAL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) == CUDA_SUCCESS &&
	       type == CU_MEMORYTYPE_DEVICE;
}

struct copy_kind copy_kind_any(CUdeviceptr to, CUdeviceptr from, uint64_t size)
{
	return described(is_device(to) && is_device(from) && on_one_card(to, from), size);
}

struct copy_kind copy_kind_any_list(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count)
{
	struct copy_kind sum = {0, 0};

	for (size_t i = 0; to && from && sizes && i < count; i++) {
		struct copy_kind one = copy_kind_any(to[i], from[i], sizes[i]);
		sum.within += one.within;
		sum.outside += one.outside;
	}
	return sum;
}

/* ---- structures ---- */

/* An array lies on the card of the call's context. */
static struct copy_kind of_types(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type, CUdeviceptr from,
				 uint64_t size)
{
	bool stays = to_type != CU_MEMORYTYPE_HOST && from_type != CU_MEMORYTYPE_HOST;

	if (stays && to_type == CU_MEMORYTYPE_UNIFIED)
		stays = is_device(to);
	if (stays && from_type == CU_MEMORYTYPE_UNIFIED)
		stays = is_device(from);
	if (stays && to_type != CU_MEMORYTYPE_ARRAY && from_type != CU_MEMORYTYPE_ARRAY)
		stays = on_one_card(to, from);
	return described(stays, size);
}

#define OF_TYPES(copy, size) \
	of_types((copy)->dstMemoryType, (copy)->dstDevice, (copy)->srcMemoryType, (copy)->srcDevice, size)

#define AREA(copy) ((uint64_t)(copy)->WidthInBytes * (copy)->Height)
#define VOLUME(copy) (AREA(copy) * (copy)->Depth)

struct copy_kind copy_kind_2d_v1(const CUDA_MEMCPY2D_v1 *copy)
{
	return copy ? OF_TYPES(copy, AREA(copy)) : copy_kind_bus(0);
}

struct copy_kind copy_kind_2d(const CUDA_MEMCPY2D *copy)
{
	return copy ? OF_TYPES(copy, AREA(copy)) : copy_kind_bus(0);
}

struct copy_kind copy_kind_3d_v1(const CUDA_MEMCPY3D_v1 *copy)
{
	return copy ? OF_TYPES(copy, VOLUME(copy)) : copy_kind_bus(0);
}

struct copy_kind copy_kind_3d(const CUDA_MEMCPY3D *copy)
{
	return copy ? OF_TYPES(copy, VOLUME(copy)) : copy_kind_bus(0);
}

struct copy_kind copy_kind_3d_peer(const CUDA_MEMCPY3D *copy)
{
	bool has_array =
		copy && (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY || copy->srcMemoryType == CU_MEMORYTYPE_ARRAY);

	if (has_array && copy->dstContext != copy->srcContext)
		return copy_kind_bus(VOLUME(copy));
	return copy_kind_3d(copy);
}

static bool stays(const CUDA_MEMCPY3D_BATCH_OP *copy)
{
	const CUmemcpy3DOperand *to = &copy->dst, *from = &copy->src;
	bool to_array = to->type == CU_MEMCPY_OPERAND_TYPE_ARRAY,
	     from_array = from->type == CU_MEMCPY_OPERAND_TYPE_ARRAY;

	return (to_array || is_device(to->pointer)) && (from_array || is_device(from->pointer)) &&
	       (to_array || from_array || on_one_card(to->pointer, from->pointer));
}

struct copy_kind copy_kind_operands(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
	struct copy_kind sum = {0, 0};

	for (size_t i = 0; list && i < count; i++)
		*(stays(&list[i]) ? &sum.within : &sum.outside) +=
			(uint64_t)list[i].width * list[i].height * list[i].depth;
	return sum;
}

/*
 * Virtual memory management: ranges of addresses, physical memory, and mappings of the one to the other. Physical
 * memory is charged when it is created and released with its last handle and mapping; it belongs to no context.
 * Imported physical memory is charged to its exporter.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory/physical.h"
#include "cuda/memory/share.h"

struct range {
	CUdeviceptr base;
	size_t size;
	struct range *next;
};

static struct range *ranges;

static struct range **find_range(CUdeviceptr pointer, size_t size)
{
	for (struct range **at = &ranges; *at; at = &(*at)->next)
		if (pointer >= (*at)->base && size <= (*at)->size && pointer - (*at)->base <= (*at)->size - size)
			return at;
	return NULL;
}

SIM_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
					unsigned long long flags)
{
	TRY(sim_init_ready());
	REJECT(!pointer || !size || size % SIM_GRANULARITY || alignment & (alignment - 1) || flags ||
	       size > (size_t)1 << 46);
	struct range *range = calloc(1, sizeof *range);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_driver.lock);
	char *at = sim_allocation_reserve_addresses(size, alignment > SIM_GRANULARITY ? alignment : SIM_GRANULARITY,
						    wanted);
	if (at) {
		*range = (struct range){(CUdeviceptr)(uintptr_t)at, size, ranges};
		ranges = range;
		*pointer = range->base;
	}
	pthread_mutex_unlock(&sim_driver.lock);
	if (!at)
		free(range);
	return at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool has_mappings(CUdeviceptr base, size_t size)
{
	for (struct sim_allocation *at = sim_driver.mappings; at; at = at->next)
		if (at->base < base + size && base < at->base + at->mapped)
			return true;
	return false;
}

SIM_EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	struct range **at = find_range(pointer, size);
	struct range *range = at ? *at : NULL;
	if (!range || range->base != pointer || range->size != size || has_mappings(pointer, size)) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		*at = range->next;
		munmap((void *)(uintptr_t)pointer, size);
		free(range);
	}
	return sim_object_unlock(result);
}

static CUresult check_allocation(const CUmemAllocationProp *properties)
{
	REJECT(!properties || properties->type != 1 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE);
	if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return sim_device(properties->location.id);
}

SIM_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
						  int option)
{
	TRY(sim_init_ready());
	TRY(check_allocation(properties));
	REJECT(!granularity || option < 0 || option > 1);
	*granularity = SIM_GRANULARITY;
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
				const CUmemAllocationProp *properties, unsigned long long flags)
{
	TRY(sim_init_ready());
	TRY(check_allocation(properties));
	REJECT(!handle || !size || size % SIM_GRANULARITY || flags);
	unsigned card = sim_driver.devices[properties->location.id].card;
	if (size > sim_state_card(card)->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&sim_driver.lock);
	return sim_object_unlock(sim_physical_new(handle, properties, card, size, true));
}

SIM_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	TRY(sim_physical_lock(handle));
	sim_physical_release(handle);
	return sim_object_unlock(CUDA_SUCCESS);
}

static void unmap_physical(struct sim_allocation *allocation)
{
	sim_physical_drop(allocation->physical);
}

static char *physical_backing(struct sim_allocation *allocation)
{
	char *backing = sim_physical_backing(allocation->physical);

	return backing ? backing + allocation->offset : NULL;
}

static const struct sim_payer physical_payer = {.give = unmap_physical, .backing = physical_backing};

static CUresult map_physical(CUdeviceptr pointer, size_t size, size_t offset, struct sim_physical *physical)
{
	REJECT(!find_range(pointer, size) || offset > physical->size || size > physical->size - offset);
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->base = pointer;
	allocation->size = allocation->mapped = size;
	allocation->memory = SIM_MAPPED_MEMORY;
	allocation->card = physical->card;
	allocation->physical = physical;
	allocation->payer = &physical_payer;
	allocation->offset = offset;
	if (sim_allocation_insert(allocation)) {
		physical->mappings++;
		return CUDA_SUCCESS;
	}
	free(allocation);
	return CUDA_ERROR_INVALID_VALUE; /* the range is already mapped */
}

SIM_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			     unsigned long long flags)
{
	REJECT(!size || size % SIM_GRANULARITY || pointer % SIM_GRANULARITY || offset % SIM_GRANULARITY || flags);
	TRY(sim_physical_lock(handle));
	return sim_object_unlock(map_physical(pointer, size, offset, handle));
}

/* Calls `each` for the mappings that fill the range; false unless they fill it exactly. */
static bool for_mappings(CUdeviceptr pointer, size_t size, void (*each)(struct sim_allocation *, int), int argument)
{
	for (CUdeviceptr at = pointer; at < pointer + size;) {
		struct sim_allocation *mapping = sim_allocation_at(at, 1);
		if (!mapping || mapping->memory != SIM_MAPPED_MEMORY || mapping->base != at ||
		    mapping->size > pointer + size - at)
			return false;
		at += mapping->size;
		if (each)
			each(mapping, argument);
	}
	return size > 0;
}

static void unmap(struct sim_allocation *mapping, int argument)
{
	(void)argument;
	sim_allocation_drop(mapping);
}

static void set_access(struct sim_allocation *mapping, int flags)
{
	mapping->flags = (unsigned)flags;
}

static CUresult over_mappings(CUdeviceptr pointer, size_t size, void (*each)(struct sim_allocation *, int),
			      int argument)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	if (for_mappings(pointer, size, NULL, 0))
		for_mappings(pointer, size, each, argument);
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

static void set_ending(struct sim_allocation *mapping, int ending)
{
	mapping->is_ending = ending;
}

/* All contexts can use the mappings. */
SIM_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	TRY(over_mappings(pointer, size, set_ending, true));
	pthread_mutex_lock(&sim_driver.lock);
	sim_allocation_settle(NULL);
	pthread_mutex_unlock(&sim_driver.lock);
	return over_mappings(pointer, size, unmap, 0);
}

SIM_EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count)
{
	REJECT(!access || !count);
	return over_mappings(pointer, size, set_access, access[0].flags);
}

SIM_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	REJECT(!flags || !location);
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *mapping = sim_allocation_at(pointer, 1);
	if (mapping && mapping->memory == SIM_MAPPED_MEMORY)
		*flags = mapping->flags;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = sim_init_ready();

	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *mapping = sim_allocation_at((CUdeviceptr)(uintptr_t)address, 1);
	if (handle && mapping && mapping->memory == SIM_MAPPED_MEMORY)
		(*handle = mapping->physical)->handles++;
	else
		result = CUDA_ERROR_INVALID_VALUE;
	return sim_object_unlock(result);
}

SIM_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
							   CUmemGenericAllocationHandle handle)
{
	TRY(properties ? sim_physical_lock(handle) : CUDA_ERROR_INVALID_VALUE);
	*properties = handle->properties;
	return sim_object_unlock(CUDA_SUCCESS);
}

static int export_physical(struct sim_physical *physical)
{
	if (!sim_physical_backing(physical))
		return -1;
	if (physical->life < 0 && physical->charged) {
		uint32_t generation = 0;
		physical->shared = sim_shares_add(physical->card, physical->charged, &generation);
		physical->life = sim_shares_hold(physical->shared, generation);
	}
	return sim_share_export(physical->fd, physical->life);
}

/* As a driver does, it refuses what was imported: docs/reality.md. */
SIM_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
						 unsigned long long flags)
{
	REJECT(!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUresult result = sim_physical_lock(handle);
	if (result != CUDA_SUCCESS)
		return result;
	int fd = -1;
	bool is_imported = !handle->charged && handle->life >= 0;
	if (!(handle->properties.requestedHandleTypes & type) || is_imported)
		result = CUDA_ERROR_INVALID_VALUE;
	else if ((fd = export_physical(handle)) < 0)
		result = CUDA_ERROR_OPERATING_SYSTEM;
	else
		*(int *)out = fd;
	return sim_object_unlock(result);
}

/* Only of mapped physical memory. */
SIM_EXPORT CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr pointer, size_t size, int type,
						  unsigned long long flags)
{
	TRY(out && size && type == 1 && !flags ? sim_init_ready() : CUDA_ERROR_INVALID_VALUE);
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *mapping = sim_allocation_at(pointer, size);
	int fd = mapping && mapping->memory == SIM_MAPPED_MEMORY ? export_physical(mapping->physical) : -1;
	if (fd >= 0)
		*(int *)out = fd;
	return sim_object_unlock(fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
}

SIM_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	CUmemAllocationProp properties = {.type = 1, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
	unsigned card;
	size_t size;

	TRY(sim_init_ready());
	REJECT(!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	int fd, life;
	REJECT(!sim_share_import((int)(intptr_t)shared, &fd, &life));
	if (!sim_share_adopt(fd, &card, &size)) {
		close(fd);
		close(life);
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&sim_driver.lock);
	properties.requestedHandleTypes = type;
	properties.location.id = sim_device_ordinal(card);
	CUresult result = sim_physical_new(handle, &properties, card, size, false);
	if (result == CUDA_SUCCESS) {
		(*handle)->fd = fd;
		(*handle)->life = life;
	} else {
		close(fd);
		close(life);
	}
	return sim_object_unlock(result);
}

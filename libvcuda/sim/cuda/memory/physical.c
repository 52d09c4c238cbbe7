/*
 * Physical memory: charged when it is created, and released with its last handle, mapping and binding. It belongs to
 * no context. Imported physical memory is charged to its exporter. Mapping it is in cuda/memory/vmm.c; multicast
 * objects and logical endpoints bind it.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory/physical.h"
#include "cuda/memory/share.h"

CUresult sim_physical_new(struct sim_physical **out, const CUmemAllocationProp *properties, unsigned card, size_t size,
			  bool charges)
{
	struct sim_physical *physical;

	TRY(charges ? sim_init_result(sim_ledger_reserve(card, size)) : CUDA_SUCCESS);
	physical = sim_object_create(sizeof *physical, SIM_PHYSICAL, NULL);
	if (!physical) {
		if (charges)
			sim_ledger_release(card, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->properties = *properties;
	physical->card = card;
	physical->size = size;
	physical->charged = charges ? size : 0;
	physical->handles = 1;
	physical->fd = physical->shared = physical->life = -1;
	*out = physical;
	return CUDA_SUCCESS;
}

static void bury(struct sim_physical *physical)
{
	if (physical->handles || physical->mappings)
		return;
	if (physical->shared >= 0)
		sim_shares_release(physical->shared);
	else if (physical->charged)
		sim_ledger_release(physical->card, physical->charged);
	if (physical->life >= 0)
		close(physical->life);
	if (physical->backing)
		munmap(physical->backing, physical->size);
	if (physical->fd >= 0)
		close(physical->fd);
	sim_physical_unbind(&physical->bindings, SIM_ANY_DEVICE, 0, SIZE_MAX);
	sim_object_destroy(physical);
}

void sim_physical_drop(struct sim_physical *physical)
{
	physical->mappings--;
	bury(physical);
}

void sim_physical_release(struct sim_physical *physical)
{
	physical->handles--;
	bury(physical);
}

bool sim_physical_fits(const struct sim_physical *physical, size_t offset, size_t size)
{
	return offset <= physical->size && size <= physical->size - offset;
}

CUresult sim_physical_bind(struct sim_binding **list, CUdevice device, size_t offset, size_t size,
			   struct sim_physical *memory)
{
	struct sim_binding *binding = malloc(sizeof *binding);

	if (!binding)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*binding = (struct sim_binding){device, offset, size, memory, *list};
	*list = binding;
	memory->mappings++;
	return CUDA_SUCCESS;
}

bool sim_physical_unbind(struct sim_binding **list, CUdevice device, size_t offset, size_t size)
{
	bool found = false;

	for (struct sim_binding **at = list; *at;) {
		struct sim_binding *binding = *at;
		if ((device != SIM_ANY_DEVICE && binding->device != device) || binding->offset < offset ||
		    binding->offset - offset >= size) {
			at = &binding->next;
			continue;
		}
		*at = binding->next;
		sim_physical_drop(binding->memory);
		free(binding);
		found = true;
	}
	return found;
}

char *sim_physical_backing(struct sim_physical *physical)
{
	if (physical->backing)
		return physical->backing;
	if (physical->fd < 0)
		physical->fd = sim_share_create(physical->card, physical->size);
	if (physical->fd < 0)
		return NULL;
	void *at = mmap(NULL, physical->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, physical->fd, 0);
	return physical->backing = at == MAP_FAILED ? NULL : at;
}

CUresult sim_physical_lock(CUmemGenericAllocationHandle handle)
{
	CUresult result = sim_object_lock(handle, SIM_PHYSICAL);

	if (result == CUDA_SUCCESS && !handle->handles) {
		pthread_mutex_unlock(&sim_driver.lock);
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
}

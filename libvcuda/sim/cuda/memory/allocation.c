/*
 * Allocations of this process. A device pointer is a range of address space that the kernel handed out without access
 * rights. It is therefore unique, never collides with host memory, and a program that follows it crashes as with a real
 * card. Copies and memsets use a second mapping, which is made on first use; the kernel fills it with pages as they are
 * written, so an allocation of 80 GiB costs no memory. The calls that allocate and free are in cuda/memory/memory.c.
 */
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory/block.h"
#include "cuda/memory/pool.h"

static void *tree;
static unsigned long long last_id;

/*
 * A thread that touches bytes without the driver's lock holds this for reading; a thread that unmaps them, for writing.
 */
static pthread_rwlock_t bytes_in_use = PTHREAD_RWLOCK_INITIALIZER;

void sim_allocation_bytes_begin(void)
{
	pthread_rwlock_rdlock(&bytes_in_use);
}

void sim_allocation_bytes_end(void)
{
	pthread_rwlock_unlock(&bytes_in_use);
}

void sim_allocation_bytes_begin_change(void)
{
	pthread_rwlock_wrlock(&bytes_in_use);
}

/* Ranges that overlap compare as equal, so a search for a range finds the allocation that contains or touches it. */
static int compare_bases(const void *left, const void *right)
{
	const struct sim_allocation *a = left, *b = right;

	if (a->base + a->mapped <= b->base)
		return -1;
	return a->base >= b->base + b->mapped;
}

#ifndef MAP_32BIT
#define MAP_32BIT 0 /* only x86 has it; elsewhere the address is checked below */
#endif

char *sim_allocation_reserve_addresses(size_t size, size_t alignment, CUdeviceptr wanted)
{
	char *at = mmap((void *)(uintptr_t)wanted, size + alignment, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	char *aligned = (char *)(((uintptr_t)at + alignment - 1) & ~(uintptr_t)(alignment - 1));
	if (aligned > at)
		munmap(at, (size_t)(aligned - at));
	if (aligned < at + alignment)
		munmap(aligned + size, (size_t)(at + alignment - aligned));
	return aligned;
}

static char *map_addresses(size_t size, int protection, int flags)
{
	void *at = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static bool is_on_card(enum sim_memory memory)
{
	return memory == SIM_DEVICE_MEMORY || memory == SIM_LOW_MEMORY || memory == SIM_MANAGED_MEMORY ||
	       memory == SIM_ARRAY_MEMORY || memory == SIM_VARIABLE_MEMORY;
}

static bool kind_frees(enum sim_free_kind kind, enum sim_memory memory)
{
	switch (kind) {
	case SIM_FREE_HOST: return memory == SIM_HOST_MEMORY;
	case SIM_FREE_ARRAY: return memory == SIM_ARRAY_MEMORY;
	case SIM_FREE_EXTERNAL: return memory == SIM_EXTERNAL_MEMORY;
	default:
		return memory == SIM_DEVICE_MEMORY || memory == SIM_LOW_MEMORY || memory == SIM_MANAGED_MEMORY ||
		       memory == SIM_GRAPH_MEMORY || memory == SIM_EXTERNAL_MEMORY;
	}
}

static void link_to_owner(struct sim_allocation *allocation)
{
	struct sim_allocation **list = allocation->pool      ? &allocation->pool->allocations
				       : allocation->context ? &allocation->context->allocations
							     : &sim_driver.mappings;

	allocation->next = *list;
	allocation->link = list;
	if (allocation->next)
		allocation->next->link = &allocation->next;
	*list = allocation;
}

static void unlink_from_owner(struct sim_allocation *allocation)
{
	*allocation->link = allocation->next;
	if (allocation->next)
		allocation->next->link = allocation->link;
}

bool sim_allocation_insert(struct sim_allocation *allocation)
{
	struct sim_allocation **node = tsearch(allocation, &tree, compare_bases);

	if (!node || *node != allocation)
		return false;
	allocation->id = ++last_id;
	link_to_owner(allocation);
	return true;
}

static bool map_allocation(struct sim_allocation *allocation)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	bool low = allocation->memory == SIM_LOW_MEMORY;
	bool device = allocation->memory != SIM_MANAGED_MEMORY && allocation->memory != SIM_HOST_MEMORY;

	allocation->mapped = (allocation->size + page - 1) & ~(page - 1);
	char *at = map_addresses(allocation->mapped, device ? PROT_NONE : PROT_READ | PROT_WRITE, low ? MAP_32BIT : 0);
	if (at && low && (uintptr_t)at + allocation->mapped > UINT32_MAX) {
		munmap(at, allocation->mapped);
		at = NULL;
	}
	if (!at)
		return false;
	allocation->base = (CUdeviceptr)(uintptr_t)at;
	allocation->backing = device ? NULL : at;
	return true;
}

static void unmap_allocation(struct sim_allocation *allocation)
{
	char *at = (char *)(uintptr_t)allocation->base;

	if (allocation->memory == SIM_REGISTERED_MEMORY || allocation->memory == SIM_MAPPED_MEMORY)
		return;
	if (allocation->share_fd)
		close(allocation->share_fd);
	if (allocation->backing && allocation->backing != at)
		munmap(allocation->backing, allocation->mapped);
	if (allocation->memory !=
	    SIM_GRAPH_MEMORY) /* its addresses belong to the node: another launch has memory there */
		munmap(at, allocation->mapped);
}

static void uncharge(struct sim_allocation *allocation)
{
	if (allocation->life_fd > 0)
		close(allocation->life_fd);
	if (allocation->payer)
		allocation->payer->give(allocation);
	else if (allocation->shared)
		sim_shares_release(allocation->shared - 1);
	else if (allocation->charged)
		sim_block_give(allocation);
}

/* Reserves on the card, maps, then inserts the allocation; a failure leaves no trace. */
static CUresult back(struct sim_allocation *allocation)
{
	CUresult result = CUDA_SUCCESS;

	if (allocation->payer)
		result = allocation->payer->take(allocation);
	else if (allocation->charged)
		result = sim_block_take(allocation);
	if (result != CUDA_SUCCESS)
		return result;
	if (map_allocation(allocation)) {
		if (sim_allocation_insert(allocation))
			return CUDA_SUCCESS;
		unmap_allocation(allocation);
	}
	uncharge(allocation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(struct sim_allocation *allocation)
{
	const struct sim_card *card = sim_state_card(allocation->card);
	CUresult result;

	if (is_on_card(allocation->memory)) {
		if (allocation->size > card->memory && allocation->memory != SIM_MANAGED_MEMORY)
			return CUDA_ERROR_OUT_OF_MEMORY;
		allocation->charged = sim_block_round(allocation->size, allocation->card);
	} else if (allocation->pool) {
		allocation->charged = allocation->size; /* charged to the pool: it is host memory */
	}
	pthread_mutex_lock(&sim_driver.lock);
	if (allocation->pool)
		result = sim_object_is(allocation->pool, SIM_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	else
		result = allocation->context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result == CUDA_SUCCESS)
		result = back(allocation);
	return sim_object_unlock(result);
}

CUresult sim_allocation_new(struct sim_context *context, struct sim_pool *pool, enum sim_memory memory, size_t size,
			    struct sim_allocation **out)
{
	REJECT(size == 0);
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->context = pool ? NULL : context;
	allocation->pool = pool;
	allocation->payer = pool ? pool->payer : NULL;
	allocation->memory = memory;
	allocation->card = sim_driver.devices[pool ? pool->device : context->device].card;
	allocation->size = size;
	CUresult result = allocate(allocation);
	if (result == CUDA_SUCCESS)
		*out = allocation;
	else
		free(allocation);
	return result;
}

CUresult sim_allocation_register(struct sim_context *context, void *host, size_t bytes, unsigned flags)
{
	struct sim_allocation *allocation = calloc(1, sizeof *allocation);

	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->context = context;
	allocation->memory = SIM_REGISTERED_MEMORY;
	allocation->card = sim_driver.devices[context->device].card;
	allocation->base = (CUdeviceptr)(uintptr_t)host;
	allocation->size = allocation->mapped = bytes;
	allocation->backing = host;
	allocation->flags = flags;
	pthread_mutex_lock(&sim_driver.lock);
	bool inserted = sim_allocation_insert(allocation);
	pthread_mutex_unlock(&sim_driver.lock);
	if (inserted)
		return CUDA_SUCCESS;
	free(allocation);
	return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

void sim_allocation_drop(struct sim_allocation *allocation)
{
	tdelete(allocation, &tree, compare_bases);
	unlink_from_owner(allocation);
	sim_allocation_bytes_begin_change();
	uncharge(allocation);
	unmap_allocation(allocation);
	sim_allocation_bytes_end();
	free(allocation);
}

void sim_allocation_drop_all(struct sim_allocation **list)
{
	while (*list)
		sim_allocation_drop(*list);
}

struct sim_allocation *sim_allocation_at(CUdeviceptr address, size_t bytes)
{
	struct sim_allocation key = {.base = address, .mapped = 1};

	if (!address || address + 1 == 0)
		return NULL;
	struct sim_allocation **node = tfind(&key, &tree, compare_bases);
	if (!node || address - (*node)->base > (*node)->size || bytes > (*node)->size - (address - (*node)->base))
		return NULL;
	return *node;
}

char *sim_allocation_backing(struct sim_allocation *allocation)
{
	if (allocation->payer && allocation->payer->backing)
		return allocation->payer->backing(allocation);
	if (!allocation->backing)
		allocation->backing = map_addresses(allocation->mapped, PROT_READ | PROT_WRITE, 0);
	return allocation->backing;
}

/* All contexts can use host memory. */
static const struct sim_context *user_of(const struct sim_allocation *allocation)
{
	bool is_host = allocation->memory == SIM_HOST_MEMORY || allocation->memory == SIM_REGISTERED_MEMORY;

	return is_host ? NULL : allocation->context;
}

void sim_allocation_settle(const struct sim_context *context)
{
	if (sim_driver.settle)
		sim_driver.settle(context);
}

/* As documented, the driver does not wait for work that uses a pool's memory: the program must. */
void sim_allocation_free(struct sim_allocation *allocation)
{
	CUdeviceptr base = allocation->base;
	unsigned long long id = allocation->id;

	allocation->is_leaving = allocation->is_ending = true;
	if (!allocation->pool)
		sim_allocation_settle(user_of(allocation));
	allocation = sim_allocation_at(base, 0);
	if (allocation && allocation->id == id) /* its context may have ended in between and freed it */
		sim_allocation_drop(allocation);
}

static struct sim_allocation *find_freeable(CUdeviceptr pointer, enum sim_free_kind kind)
{
	struct sim_allocation *allocation = sim_allocation_at(pointer, 0);

	if (!allocation || allocation->base != pointer)
		return NULL;
	return kind_frees(kind, allocation->memory) || (allocation->pool && kind == SIM_FREE_DEVICE) ? allocation
												     : NULL;
}

CUresult sim_allocation_free_pointer(CUdeviceptr pointer, enum sim_free_kind kind)
{
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = find_freeable(pointer, kind);
	bool is_free = !allocation || allocation->is_leaving;
	if (!is_free)
		sim_allocation_free(allocation);
	return sim_object_unlock(is_free ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

void sim_allocation_free_in_order(CUdeviceptr pointer)
{
	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = find_freeable(pointer, SIM_FREE_DEVICE);
	if (allocation && !allocation->is_ending)
		sim_allocation_drop(allocation);
	pthread_mutex_unlock(&sim_driver.lock);
}

CUresult sim_allocation_free_later(CUdeviceptr pointer)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&sim_driver.lock);
	struct sim_allocation *allocation = find_freeable(pointer, SIM_FREE_DEVICE);
	if (allocation && !allocation->is_leaving) {
		allocation->is_leaving = true;
		result = CUDA_SUCCESS;
	}
	return sim_object_unlock(result);
}

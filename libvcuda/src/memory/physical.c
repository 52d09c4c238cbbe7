/*
 * Implements memory/physical.h. Bindings are few and change seldom, so they are one list under one lock.
 */
#include "memory/physical.h"

#include <pthread.h>
#include <stdlib.h>

#include "memory/allocations.h"
#include "memory/charge.h"

struct binding {
	struct binding *next;
	struct binder to;
	uint64_t offset, size;
	CUmemGenericAllocationHandle memory;
	CUdevice device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct binding *bindings;

/* The charges of a forked child are its parent's, see memory/allocations.h. */
static void empty_list(void)
{
	pthread_mutex_init(&lock, NULL);
	bindings = NULL;
}

static void physical_watch_forks(void)
{
	pthread_atfork(NULL, NULL, empty_list);
}

/* Drops what the bindings of a list refer to. Called without the lock: the last reference may end further bindings. */
static void drop_list(struct binding *list)
{
	while (list) {
		struct binding *next = list->next;
		physical_drop(list->memory);
		free(list);
		list = next;
	}
}

void physical_drop(CUmemGenericAllocationHandle handle)
{
	bool known;
	struct allocation *last = allocations_dereference(ALLOCATED_HANDLE, handle, &known);

	if (!last)
		return;
	(void)charge_give_back(last, CUDA_SUCCESS);
	physical_unbind_all((struct binder){MULTICAST_OBJECT, handle});
}

struct binding *physical_begin_binding(CUmemGenericAllocationHandle memory, bool *room)
{
	struct allocation entry;

	*room = true;
	if (!allocations_reference(ALLOCATED_HANDLE, memory) || !allocations_find(ALLOCATED_HANDLE, memory, &entry))
		return NULL;
	struct binding *binding = calloc(1, sizeof(*binding));
	*room = binding;
	if (!binding) {
		physical_drop(memory);
		return NULL;
	}
	*binding = (struct binding){.memory = memory, .device = entry.device};
	return binding;
}

CUresult physical_end_binding(struct binding *binding, CUresult result, struct binder to, uint64_t offset, uint64_t size)
{
	if (!binding)
		return result;
	if (result != CUDA_SUCCESS) {
		drop_list(binding);
		return result;
	}
	binding->to = to;
	binding->offset = offset;
	binding->size = size;
	pthread_once(&once, physical_watch_forks);
	pthread_mutex_lock(&lock);
	binding->next = bindings;
	bindings = binding;
	pthread_mutex_unlock(&lock);
	return result;
}

static bool is_bound_to(const struct binding *binding, struct binder to)
{
	return binding->to.kind == to.kind && binding->to.key == to.key;
}

void physical_unbind(struct binder from, CUdevice device, uint64_t offset, uint64_t size)
{
	struct binding *ended = NULL;

	pthread_mutex_lock(&lock);
	for (struct binding **at = &bindings; *at;) {
		struct binding *binding = *at;
		if (!is_bound_to(binding, from) || (device != NO_DEVICE && binding->device != device) ||
		    binding->offset < offset || binding->offset - offset >= size) {
			at = &binding->next;
			continue;
		}
		*at = binding->next;
		binding->next = ended;
		ended = binding;
	}
	pthread_mutex_unlock(&lock);
	drop_list(ended);
}

void physical_unbind_all(struct binder from)
{
	physical_unbind(from, NO_DEVICE, 0, UINT64_MAX);
}

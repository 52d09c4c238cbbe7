/*
 * Implements memory/physical.h. Bindings are few and change seldom, so they are one list under one lock.
 */
#include "memory/physical.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "memory/allocations.h"
#include "memory/sharing.h"

struct binding {
	struct binding *next;
	struct binder to;
	uint64_t number;
	uint64_t offset, size;
	CUmemGenericAllocationHandle memory;
	uint64_t serial; /* of the memory's entry */
	CUdevice device;
};

enum {
	PAUSE = 20000,    /* ns */
	PATIENCE = 50000, /* pauses: a second and more */
};
#define ALONE PHYSICAL_ALONE

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct binding *_Atomic bindings; /* changed under the lock */
static _Atomic uint64_t next_number;
atomic_uint physical_holders;

/* The charges of a forked child are its parent's, see memory/allocations.h. */
static void physical_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
	atomic_store(&physical_holders, 0);
	bindings = NULL;
}

__attribute__((constructor)) static void physical_watch_forks(void)
{
	pthread_atfork(NULL, NULL, physical_after_fork);
}

/* False: the others have not let go. A thread that was cancelled within the driver's call never does. */
static bool wait_for_holders(unsigned int wanted, unsigned int mask)
{
	const struct timespec pause = {.tv_nsec = PAUSE};

	for (int pauses = 0; pauses < PATIENCE; pauses++) {
		if ((atomic_load(&physical_holders) & mask) == wanted)
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

/* Others may have taken the lock from a thread that had it for too long. */
void physical_let_go(unsigned int kind, unsigned int mask)
{
	unsigned int now = atomic_load(&physical_holders);

	while (now & mask && !atomic_compare_exchange_weak(&physical_holders, &now, now - kind))
		;
}

void physical_wait_alone(void)
{
	while (atomic_fetch_or(&physical_holders, ALONE) & ALONE)
		if (!wait_for_holders(0, ALONE))
			break;
	if (!wait_for_holders(ALONE, UINT32_MAX))
		atomic_store(&physical_holders, ALONE);
}

/* It has been counted among the threads that share the lock. */
void physical_wait_shared(void)
{
	do {
		physical_let_go(1, ~ALONE);
		if (!wait_for_holders(0, ALONE))
			atomic_store(&physical_holders, 0);
	} while (atomic_fetch_add(&physical_holders, 1) & ALONE);
}

/* Drops what the bindings of a list refer to. Called without the lock: the last reference may end further bindings. */
static void drop_list(struct binding *list)
{
	while (list) {
		struct binding *next = list->next;
		physical_drop(list->memory, list->serial);
		free(list);
		list = next;
	}
}

struct binder physical_binder(enum binder_kind kind, uint64_t key)
{
	struct allocation entry = {.serial = 0};

	if (kind == MULTICAST_OBJECT)
		(void)allocations_find(ALLOCATED_HANDLE, key, &entry);
	else if (kind == SPARSE_ARRAY && !allocations_find(ALLOCATED_ARRAY, key, &entry))
		(void)allocations_find(ALLOCATED_MIPMAP, key, &entry);
	return (struct binder){kind, key, entry.serial};
}

void physical_drop(CUmemGenericAllocationHandle handle, uint64_t serial)
{
	bool known;
	struct allocation *last = allocations_dereference(ALLOCATED_HANDLE, handle, serial, &known);

	if (!last)
		return;
	const struct binder object = {MULTICAST_OBJECT, handle, last->serial};
	sharing_release(last);
	physical_unbind_all(object, UINT64_MAX);
}

struct binding *physical_begin_binding(CUmemGenericAllocationHandle memory, bool *room)
{
	struct allocation entry;

	*room = true;
	uint64_t serial = allocations_reference(ALLOCATED_HANDLE, memory);
	if (!serial || !allocations_find(ALLOCATED_HANDLE, memory, &entry))
		return NULL;
	struct binding *binding = calloc(1, sizeof(*binding));
	*room = binding;
	if (!binding) {
		physical_drop(memory, serial);
		return NULL;
	}
	*binding = (struct binding){.memory = memory, .serial = serial, .device = entry.device};
	return binding;
}

CUresult physical_end_binding(struct binding *binding, CUresult result, struct binder to, uint64_t offset,
			      uint64_t size)
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
	pthread_mutex_lock(&lock);
	binding->number = atomic_fetch_add(&next_number, 1);
	binding->next = bindings;
	bindings = binding;
	pthread_mutex_unlock(&lock);
	return result;
}

static bool is_bound_to(const struct binding *binding, struct binder to)
{
	return binding->to.kind == to.kind && binding->to.key == to.key && binding->to.serial == to.serial;
}

uint64_t physical_next_binding(void)
{
	return atomic_load(&next_number);
}

void physical_unbind(struct binder from, CUdevice device, uint64_t offset, uint64_t size, uint64_t before)
{
	struct binding *ended = NULL, *first;

	if (!atomic_load(&bindings))
		return;
	pthread_mutex_lock(&lock);
	first = atomic_load(&bindings);
	for (struct binding **at = &first; *at;) {
		struct binding *binding = *at;
		if (!is_bound_to(binding, from) || binding->number >= before ||
		    (device != NO_DEVICE && binding->device != device) || binding->offset < offset ||
		    binding->offset - offset >= size) {
			at = &binding->next;
			continue;
		}
		*at = binding->next;
		binding->next = ended;
		ended = binding;
	}
	atomic_store(&bindings, first);
	pthread_mutex_unlock(&lock);
	drop_list(ended);
}

void physical_unbind_all(struct binder from, uint64_t before)
{
	physical_unbind(from, NO_DEVICE, 0, UINT64_MAX, before);
}

/*
 * Implements memory/physical.h. Bindings are few and change seldom, so they are one list under one lock.
 */
#include "memory/physical.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct binding *bindings;
static _Atomic uint64_t next_number;
static pthread_rwlock_t holders = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* of those that wait for `holders`, see lock_holders */

/* The charges of a forked child are its parent's, see memory/allocations.h. */
static void empty_list(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_rwlock_init(&holders, NULL);
	pthread_mutex_init(&turn, NULL);
	bindings = NULL;
}

static void physical_watch_forks(void)
{
	pthread_atfork(NULL, NULL, empty_list);
}

/* A thread that has the lock is not cancelled within the driver's call: the lock would stay for ever. */
static __thread int cancel_state;

/*
 * A call that wants the lock for itself has the turn while it waits for those that share it. Later ones wait behind it:
 * else they would overtake it as long as any of them has the lock.
 */
static bool lock_holders(int (*lock_by)(pthread_rwlock_t *))
{
	int before;

	pthread_once(&once, physical_watch_forks);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_mutex_lock(&turn);
	int failed = lock_by(&holders);
	pthread_mutex_unlock(&turn);
	if (failed) {
		pthread_setcancelstate(before, NULL);
		return false;
	}
	cancel_state = before;
	return true;
}

bool physical_lock_alone(void)
{
	return lock_holders(pthread_rwlock_wrlock);
}

bool physical_lock_shared(void)
{
	return lock_holders(pthread_rwlock_rdlock);
}

void physical_unlock(bool is_locked)
{
	if (!is_locked)
		return;
	pthread_rwlock_unlock(&holders);
	pthread_setcancelstate(cancel_state, NULL);
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
	pthread_once(&once, physical_watch_forks);
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
	struct binding *ended = NULL;

	pthread_mutex_lock(&lock);
	for (struct binding **at = &bindings; *at;) {
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
	pthread_mutex_unlock(&lock);
	drop_list(ended);
}

void physical_unbind_all(struct binder from, uint64_t before)
{
	physical_unbind(from, NO_DEVICE, 0, UINT64_MAX, before);
}

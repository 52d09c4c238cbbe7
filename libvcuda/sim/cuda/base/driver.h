/*
 * This process' devices and the handles of its objects, and what every entry point begins and ends with. The driver's
 * public types are in cuda/base/types.h, its structures in cuda/base/structs.h.
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda/base/structs.h"
#include "state/state.h"

#define MAX_THREADS_PER_BLOCK 1024u

enum sim_kind {
	SIM_STREAM = 1,
	SIM_EVENT,
	SIM_MODULE,
	SIM_FUNCTION,
	SIM_POOL,
	SIM_ARRAY,
	SIM_MIPMAP,
	SIM_PHYSICAL,
	SIM_GRAPH,
	SIM_NODE,
	SIM_EXEC,
	SIM_LIBRARY,
	SIM_LINK,
	SIM_EXTERNAL,
	SIM_TEXTURE,
	SIM_SURFACE,
	SIM_RESOURCES,
	SIM_GREEN,
	SIM_CONDITION,
	SIM_SEMAPHORE,
};

/* Every handle points to one. An object dies with its context; pools, graphs and physical memory have no context. */
struct sim_object {
	enum sim_kind kind;
	struct sim_context *context;
	struct sim_object *next;
	struct sim_object **link; /* the pointer that points to this object */
	void *owned;              /* memory that is freed with the object */
};

/* Graph memory of a device: bytes of live allocations, and reserved bytes, which only a trim releases. */
struct sim_graph_memory {
	uint64_t used, used_high, reserved, reserved_high;
	uint64_t nodes; /* of executable graphs */
	uint64_t kept;  /* bytes for the most nodes that there were, until the device's last context ends */
};

struct sim_device {
	unsigned card;               /* its number in the shared state */
	struct sim_context *primary; /* made once and kept: its handle must stay the same */
	unsigned retained;
	unsigned primary_flags;
	struct sim_pool *default_pool;
	struct sim_pool *pool;       /* the pool that is set; NULL: the default one */
	struct sim_pool *managed_default; /* default pool of managed memory */
	struct sim_pool *managed_pool;    /* pool of managed memory that is set; NULL: the default one */
	struct sim_pool *pools;
	struct sim_graph_memory graphs;
};

struct sim_driver {
	pthread_mutex_t lock;  /* protects all objects of this process */
	int device_count;
	struct sim_device devices[SIM_MAX_CARDS];
	struct sim_pool *host_default; /* default pool of host memory */
	struct sim_pool *host_pool;    /* pool of host memory that is set; NULL: the default one */
	struct sim_allocation *mappings; /* of physical memory; they belong to no context */
	uint32_t watches; /* of cuda/work/watch.c that no stream has reached yet; it changes by atomic operations */
	/*
	 * Waits for the work that may use a context's memory (NULL: any context's). The first work sets it. Under the
	 * lock, which is released while there is something to wait for.
	 */
	void (*settle)(const struct sim_context *context);
};

extern struct sim_driver sim_driver;

/* Every entry point begins with one of these, or with one of cuda/base/context.h. The result is the driver's own error. */
CUresult sim_init_ready(void);        /* cuInit has been called in this process */
CUresult sim_device(CUdevice device); /* ready, and the ordinal exists */

CUresult sim_init_result(enum sim_status status);
const struct sim_card *sim_device_card(CUdevice device);
int sim_device_ordinal(unsigned card); /* of a card of the state; -1: it is not visible */
unsigned sim_attribute_threads_per_sm(const struct sim_card *card);
unsigned sim_attribute_shared_per_sm(const struct sim_card *card);
/* Whether the device is on a board with NVSwitches and can multicast. */
bool sim_attribute_multicasts(CUdevice device);
unsigned sim_order_devices(unsigned *cards, unsigned count);

/* Handles. All calls are made under sim_driver.lock. */
void *sim_object_create(size_t size, enum sim_kind kind, struct sim_context *context);
bool sim_object_is(const void *handle, enum sim_kind kind);
void sim_object_destroy(void *handle);
void sim_object_hide(void *handle); /* the handle becomes invalid, but the object is not freed */
void sim_object_destroy_all(struct sim_context *context); /* destroys all of them */

/* For entry points that take a handle: locks, checks, and on CUDA_SUCCESS returns with the lock held. */
CUresult sim_object_lock(const void *handle, enum sim_kind kind);

/* Ends an entry point that holds the lock: unlocks it and returns `result`. */
CUresult sim_object_unlock(CUresult result);

#endif

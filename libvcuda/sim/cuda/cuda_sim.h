/* The simulated driver's own objects: one process' devices, contexts, allocations and handles. */
#ifndef CUDA_SIM_H
#define CUDA_SIM_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda/types.h"
#include "state/state.h"

#define SIM_STACK_DEPTH 64
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
	SIM_USER_OBJECT,
	SIM_TEXTURE,
	SIM_SURFACE,
	SIM_RESOURCES,
	SIM_GREEN,
	SIM_CONDITION,
	SIM_TEXTURE_REFERENCE,
	SIM_SURFACE_REFERENCE,
	SIM_SEMAPHORE,
};

/* What a handle points to. Objects die with their context; pools, graphs and physical memory have none. */
struct sim_object {
	enum sim_kind kind;
	struct sim_context *context;
	struct sim_object *next;
	struct sim_object **link; /* what points to this one */
	void *owned;              /* goes with it */
};

struct sim_context {
	CUdevice device;
	unsigned flags;
	unsigned version;
	bool primary;
	unsigned sm_count;       /* of a green context; 0: it has them all */
	struct sim_green *green; /* its handle */
	unsigned attached; /* how often, beyond its creation */
	bool alive;
	bool is_ending; /* not alive, but its streams still carry out what they hold */
	size_t limits[SIM_LIMITS];
	uint32_t peers; /* bit n: peer access to device n is enabled */
	struct sim_object *objects;
	struct sim_allocation *allocations;
	struct sim_engine *engine; /* carries out its streams, see cuda/queue.h */
	struct sim_stream *legacy; /* the default stream, once it was used */
};

enum sim_memory {
	SIM_DEVICE_MEMORY,
	SIM_LOW_MEMORY, /* device memory at an address of 32 bits */
	SIM_MANAGED_MEMORY,
	SIM_HOST_MEMORY,
	SIM_REGISTERED_MEMORY,
	SIM_ARRAY_MEMORY,    /* device memory whose address nobody knows */
	SIM_VARIABLE_MEMORY, /* a module's variable: goes with the module */
	SIM_MAPPED_MEMORY,   /* physical memory, mapped into a reserved range; see cuda/vmm.c */
	SIM_IMPORTED_MEMORY, /* another process', which pays for it; see cuda/ipc.c */
	SIM_EXTERNAL_MEMORY, /* another interface's, which pays for it */
	SIM_GRAPH_MEMORY,    /* of a graph's allocation node, charged to the device's graph memory */
};

/* What a call frees; the rest is not its own. */
enum sim_free_kind { SIM_FREE_DEVICE, SIM_FREE_HOST, SIM_FREE_ARRAY, SIM_FREE_EXTERNAL };

struct sim_allocation {
	CUdeviceptr base;
	size_t size;               /* bytes the caller may touch */
	size_t mapped;             /* bytes of address space */
	uint64_t charged;          /* bytes on the card; 0 for host memory */
	enum sim_memory memory;
	unsigned flags;
	unsigned card;
	unsigned long long id;
	bool is_leaving;           /* what frees it is on its way: work, */
	bool is_ending;            /* or a call, which waits for what the streams hold */
	char *backing;             /* NULL until somebody copies: a launch needs no bytes */
	struct sim_context *context;   /* its owner is this */
	struct sim_pool *pool;         /* or this */
	struct sim_physical *physical; /* or this, of which it shows a part */
	size_t offset;
	uint64_t imported_id;          /* of imported memory: its number there, */
	int imported_pid;              /* the process, */
	unsigned imports;              /* and how often it was opened */
	int share_fd;                  /* 0, or the file that other processes map it by */
	struct sim_allocation *next;
	struct sim_allocation **link;
};

struct sim_pool {
	struct sim_object object;
	CUdevice device; /* of a pool of the host's memory: 0 */
	enum sim_memory memory; /* of what it gives */
	bool doomed; /* destroyed by the program: goes with its last allocation */
	bool is_imported; /* another process': nothing is allocated from it here */
	int handle_types; /* by which it may be exported */
	unsigned char access[SIM_MAX_CARDS]; /* of other devices, by their number */
	struct sim_allocation *allocations;
	struct sim_pool *next; /* of the same device */
	uint64_t settings[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD + 1];
	uint64_t used;
	uint64_t high;
	uint64_t reserved; /* charged: what is used, and what was freed and is kept up to the threshold */
	uint64_t reserved_high;
};

/* What graphs hold on a device: used by live allocations, and reserved, which goes back only when trimmed. */
struct sim_graph_memory {
	uint64_t used, used_high, reserved, reserved_high;
};

struct sim_device {
	unsigned card;               /* its number in the shared state */
	struct sim_context *primary; /* made once and kept: its handle must stay the same */
	unsigned retained;
	unsigned primary_flags;
	struct sim_pool *default_pool;
	struct sim_pool *pool;       /* in force; NULL: the default one */
	struct sim_pool *managed_default; /* the same of managed memory */
	struct sim_pool *managed_pool;
	struct sim_pool *pools;
	struct sim_graph_memory graphs;
};

struct sim_driver {
	pthread_mutex_t lock;  /* all of this process' objects */
	int device_count;
	struct sim_device devices[SIM_MAX_CARDS];
	struct sim_pool *host_default; /* of the host's memory, */
	struct sim_pool *host_pool;    /* and the one in force; NULL: the default one */
	struct sim_allocation *mappings; /* of physical memory: they belong to no context */
};

extern struct sim_driver sim_driver;

/* Every entry point starts with one of these; the text of the errors is the driver's. */
CUresult sim_ready(void);                          /* has cuInit been called, and in this very process? */
CUresult sim_device(CUdevice device);              /* ready, and the ordinal exists */
CUresult sim_current(struct sim_context **context); /* ready, and a live context is current */
CUresult sim_context_check(CUcontext context);      /* ready, and it is a live one */

CUresult sim_result(enum sim_status status);
const struct sim_card *sim_device_card(CUdevice device);
unsigned sim_threads_per_sm(const struct sim_card *card);
unsigned sim_shared_per_sm(const struct sim_card *card);
unsigned sim_order_devices(unsigned *cards, unsigned count);

/* Handles. All under sim_driver.lock. */
void *sim_object_create(size_t size, enum sim_kind kind, struct sim_context *context);
bool sim_object_is(const void *handle, enum sim_kind kind);
void sim_object_destroy(void *handle);
void sim_object_hide(void *handle); /* no handle any more, but not freed */
void sim_modules_of(struct sim_context *context);
void sim_objects_of(struct sim_context *context); /* destroy them all */

/* The entry points' frame for a handle: lock, check, and on CUDA_SUCCESS leave it locked. */
CUresult sim_lock_object(const void *handle, enum sim_kind kind);
CUresult sim_check_stream(CUstream stream);
CUresult sim_stream_context(CUstream stream, struct sim_context **context);

/* Memory. */
CUresult sim_allocate(struct sim_context *context, struct sim_pool *pool, enum sim_memory memory, size_t size,
                      struct sim_allocation **allocation);
CUresult sim_free(CUdeviceptr pointer, enum sim_free_kind kind);
CUresult sim_free_later(CUdeviceptr pointer); /* may it be freed, by work that is to come? Only once */
void sim_free_in_order(CUdeviceptr pointer);  /* that work: a stream has come to it, and waits for nothing */
void sim_allocation_drop(struct sim_allocation *allocation); /* under the lock */
void sim_allocation_free(struct sim_allocation *allocation); /* the same when what may use it is done; gives the lock up */
void sim_allocations_of(struct sim_allocation **list);       /* drop them all; under the lock */
struct sim_allocation *sim_allocation_at(CUdeviceptr address, size_t bytes); /* under the lock */
char *sim_backing(struct sim_allocation *allocation);                        /* under the lock; NULL: no memory */
/*
 * What sim_backing gave is touched between these, without the lock, and not for long: who frees waits for it under the
 * lock. Begun under the lock. Who moves the bytes begins a change, and ends it the same way.
 */
void sim_bytes_begin(void);
void sim_bytes_begin_change(void);
void sim_bytes_end(void);
CUresult sim_allocation_register(struct sim_context *context, void *host, size_t bytes, unsigned flags);

/* Make a prepared allocation known; false: something is there already, or no memory. Under the lock. */
bool sim_allocation_insert(struct sim_allocation *allocation);
char *sim_reserve_addresses(size_t size, size_t alignment, CUdeviceptr wanted);
/* Backing that other processes can map: moves what is there into a file. -1: no memory. Under the lock. */
int sim_backing_share(struct sim_allocation *allocation);
int sim_share_create(unsigned card, size_t size);
bool sim_share_adopt(int fd, unsigned *card, size_t *size);
int sim_ordinal(unsigned card);

char *sim_physical_backing(struct sim_physical *physical);
void sim_physical_drop(struct sim_physical *physical);
unsigned long long sim_physical_handle_types(const struct sim_physical *physical);

CUresult sim_graph_reserve(CUdevice device, uint64_t bytes); /* under the lock, as the next */
void sim_graph_unuse(CUdevice device, uint64_t bytes);
void sim_graph_memory_of(CUdevice device);

void sim_pools_of(CUdevice device); /* drop what was allocated from them; under the lock */

#endif

/*
 * The simulated driver's own objects: one process' devices, contexts, allocations, pools and handles, and the functions
 * that most files of cuda/ share. Streams and their work are in cuda/stream.h and cuda/work.h, graphs in cuda/graph.h,
 * the driver's public structures in cuda/types.h and cuda/structs.h.
 */
#ifndef CUDA_SIM_H
#define CUDA_SIM_H

#include <pthread.h>
#include <stdbool.h>

#include "cuda/structs.h"
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

struct sim_context {
	CUdevice device;
	unsigned flags;
	unsigned version;
	bool primary;
	unsigned sm_count;       /* multiprocessors of a green context; 0: all of the card's */
	struct sim_green *green; /* its handle */
	unsigned attached; /* number of cuCtxAttach calls */
	bool alive;
	bool is_ending; /* no longer alive, but its streams still carry out their work */
	size_t limits[SIM_LIMITS];
	uint32_t peers; /* bit n: peer access to device n is enabled */
	struct sim_object *objects;
	struct sim_allocation *allocations;
	struct sim_engine *engine; /* carries out the work of its streams, see cuda/queue.h */
	struct sim_stream *legacy; /* the default stream; NULL until its first use */
};

enum sim_memory {
	SIM_DEVICE_MEMORY,
	SIM_LOW_MEMORY, /* device memory at a 32-bit address */
	SIM_MANAGED_MEMORY,
	SIM_HOST_MEMORY,
	SIM_REGISTERED_MEMORY,
	SIM_ARRAY_MEMORY,    /* device memory whose address no program gets */
	SIM_VARIABLE_MEMORY, /* a module's variable: freed with the module */
	SIM_MAPPED_MEMORY,   /* physical memory that is mapped into a reserved range; see cuda/vmm.c */
	SIM_IMPORTED_MEMORY, /* exported by another process, which pays for it; see cuda/ipc.c */
	SIM_EXTERNAL_MEMORY, /* imported from another interface, which pays for it */
	SIM_GRAPH_MEMORY,    /* of a graph's allocation node, charged to the device's graph memory */
};

/* The memory that a call may free; each call rejects memory of the other kinds. */
enum sim_free_kind { SIM_FREE_DEVICE, SIM_FREE_HOST, SIM_FREE_ARRAY, SIM_FREE_EXTERNAL };

struct sim_allocation;

/* What pays for an allocation where that is not the card's ledger, and has its bytes where it has not got its own. */
struct sim_payer {
	CUresult (*take)(struct sim_allocation *allocation); /* NULL: it has paid before */
	void (*give)(struct sim_allocation *allocation);     /* the allocation ends; no thread touches its bytes */
	char *(*backing)(struct sim_allocation *allocation); /* NULL: the bytes are the allocation's own */
};

struct sim_allocation {
	CUdeviceptr base;
	size_t size;               /* bytes that the program may touch */
	size_t mapped;             /* bytes of address space */
	uint64_t charged;          /* bytes on the card; 0 for host memory */
	enum sim_memory memory;
	unsigned flags;
	unsigned card;
	unsigned long long id;
	bool is_leaving;           /* work that frees it has been submitted */
	bool is_ending;            /* a call that frees it waits for the streams */
	char *backing;             /* NULL until the first copy: a launch needs no bytes */
	struct sim_context *context;   /* context, pool or physical is the owner; the other two are NULL */
	struct sim_pool *pool;
	struct sim_physical *physical; /* the allocation shows a part of it */
	const struct sim_payer *payer; /* NULL: the ledger */
	size_t offset;
	uint64_t imported_id;          /* of imported memory: its number in the exporting process */
	int imported_pid;              /* the exporting process */
	unsigned imports;              /* how often the memory was opened */
	int share_fd;                  /* 0, or the file by which other processes map it */
	int shared;                    /* its number among the exported memory + 1; 0: it is not exported */
	uint32_t shared_generation;    /* of that number */
	int life_fd;                   /* of imported memory: keeps it on its card; 0: nothing does */
	struct sim_allocation *next;
	struct sim_allocation **link;
};

struct sim_pool {
	struct sim_object object;
	CUdevice device; /* 0 for a pool of host memory */
	enum sim_memory memory; /* kind of memory that the pool hands out */
	const struct sim_payer *payer; /* of its allocations */
	bool doomed; /* destroyed by the program: freed with its last allocation */
	bool is_imported; /* another process' pool: nothing is allocated from it here */
	int handle_types; /* handle types that it may be exported as */
	unsigned char access[SIM_MAX_CARDS]; /* of other devices, by their number */
	struct sim_allocation *allocations;
	struct sim_pool *next; /* of the same device */
	uint64_t settings[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD + 1];
	uint64_t used;
	uint64_t high;
	uint64_t reserved; /* charged: bytes in use, and freed bytes that are kept up to the release threshold */
	uint64_t reserved_high;
};

/* Graph memory of a device: bytes of live allocations, and reserved bytes, which only a trim releases. */
struct sim_graph_memory {
	uint64_t used, used_high, reserved, reserved_high;
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
	/*
	 * Waits for the work that may use a context's memory (NULL: any context's). The first work sets it. Under the
	 * lock, which is released while there is something to wait for.
	 */
	void (*settle)(const struct sim_context *context);
};

extern struct sim_driver sim_driver;

/* Every entry point begins with one of these. The result is the driver's own error. */
CUresult sim_init_ready(void);                          /* cuInit has been called in this process */
CUresult sim_device(CUdevice device);              /* ready, and the ordinal exists */
CUresult sim_context_current(struct sim_context **context); /* ready, and a live context is current */
CUresult sim_context_check(CUcontext context);      /* ready, and the context is a live one */

/* What ends with a context, and with the last one of a device: lists in cuda/teardown.c. Under the lock. */
extern void (*const sim_context_ends[])(struct sim_context *context);
extern void (*const sim_context_last_ends[])(CUdevice device);

CUresult sim_init_result(enum sim_status status);
const struct sim_card *sim_device_card(CUdevice device);
unsigned sim_attribute_threads_per_sm(const struct sim_card *card);
unsigned sim_attribute_shared_per_sm(const struct sim_card *card);
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

CUresult sim_stream_check(CUstream stream);
CUresult sim_stream_context(CUstream stream, struct sim_context **context);

/* Memory. */
CUresult sim_allocation_new(struct sim_context *context, struct sim_pool *pool, enum sim_memory memory, size_t size,
                      struct sim_allocation **allocation);
CUresult sim_allocation_free_pointer(CUdeviceptr pointer, enum sim_free_kind kind);
CUresult sim_allocation_free_later(CUdeviceptr pointer); /* marks it: submitted work will free it; succeeds only once */
void sim_allocation_free_in_order(CUdeviceptr pointer);  /* frees it when a stream reaches that work; does not wait */
void sim_allocation_drop(struct sim_allocation *allocation); /* under the lock */
/* the same once work that may use it is done; releases the lock meanwhile */
void sim_allocation_free(struct sim_allocation *allocation);
void sim_allocation_drop_all(struct sim_allocation **list);       /* drops all of them; under the lock */
/* Waits for the work that may use the context's memory; NULL: that of all contexts. Under the lock, see sim_driver. */
void sim_allocation_settle(const struct sim_context *context);
struct sim_allocation *sim_allocation_at(CUdeviceptr address, size_t bytes); /* under the lock */
char *sim_allocation_backing(struct sim_allocation *allocation);   /* under the lock; NULL: no memory */
/*
 * The bytes that sim_allocation_backing returned may be touched between begin and end, without the driver's lock, and
 * only briefly: a thread that frees memory waits for that under the lock. Begin is called under the lock. A thread that
 * moves the bytes begins a change instead.
 */
void sim_allocation_bytes_begin(void);
void sim_allocation_bytes_begin_change(void);
void sim_allocation_bytes_end(void);
CUresult sim_allocation_register(struct sim_context *context, void *host, size_t bytes, unsigned flags);

/* Inserts a prepared allocation. False: the range is taken, or there is no memory. Under the lock. */
bool sim_allocation_insert(struct sim_allocation *allocation);
char *sim_allocation_reserve_addresses(size_t size, size_t alignment, CUdeviceptr wanted);
/* Moves the bytes into a file that other processes can map. -1: no memory. Under the lock. */
int sim_share_backing(struct sim_allocation *allocation);
int sim_share_create(unsigned card, size_t size);
bool sim_share_adopt(int fd, unsigned *card, size_t *size);
/* A descriptor for other processes, by which they get the file and the lock that keeps the memory. -1: an error. */
int sim_share_export(int fd, int life);
bool sim_share_import(int exported, int *fd, int *life);
int sim_device_ordinal(unsigned card);

#endif

/*
 * Allocations: what a program's pointers point to, on a card or in the host's memory.
 */
#ifndef CUDA_ALLOCATION_H
#define CUDA_ALLOCATION_H

#include "cuda/base/context.h"

enum sim_memory {
	SIM_DEVICE_MEMORY,
	SIM_LOW_MEMORY, /* device memory at a 32-bit address */
	SIM_MANAGED_MEMORY,
	SIM_HOST_MEMORY,
	SIM_REGISTERED_MEMORY,
	SIM_ARRAY_MEMORY,    /* device memory whose address no program gets */
	SIM_VARIABLE_MEMORY, /* a module's variable: freed with the module */
	SIM_MAPPED_MEMORY,   /* physical memory that is mapped into a reserved range; see cuda/memory/vmm.c */
	SIM_IMPORTED_MEMORY, /* exported by another process, which pays for it; see cuda/memory/ipc.c */
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
	struct sim_block *block;   /* which it shares with others; NULL: none */
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

CUresult sim_allocation_new(struct sim_context *context, struct sim_pool *pool, enum sim_memory memory, size_t size,
			    struct sim_allocation **allocation);
CUresult sim_allocation_free_pointer(CUdeviceptr pointer, enum sim_free_kind kind);
CUresult sim_allocation_free_later(CUdeviceptr pointer); /* marks it: submitted work will free it; succeeds only once */
void sim_allocation_free_in_order(CUdeviceptr pointer); /* frees it when a stream reaches that work; does not wait */
void sim_allocation_drop(struct sim_allocation *allocation); /* under the lock */
/* the same once work that may use it is done; releases the lock meanwhile */
void sim_allocation_free(struct sim_allocation *allocation);
void sim_allocation_drop_all(struct sim_allocation **list); /* drops all of them; under the lock */
/* Waits for the work that may use the context's memory; NULL: that of all contexts. Under the lock, see sim_driver. */
void sim_allocation_settle(const struct sim_context *context);
struct sim_allocation *sim_allocation_at(CUdeviceptr address, size_t bytes); /* under the lock */
char *sim_allocation_backing(struct sim_allocation *allocation); /* under the lock; NULL: no memory */
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

#endif

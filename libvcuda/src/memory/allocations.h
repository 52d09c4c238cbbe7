/*
 * The table of what this process is charged for: the driver's handle -> card and bytes.
 *
 * Belongs here: the table alone. memory/charge.c decides what is booked. A wrapper makes the entry before it calls the
 * driver, so that it can always record a granted allocation. A forked child starts with an empty table. Every function
 * is thread safe and takes a few dozen nanoseconds.
 */
#ifndef VCUDA_ALLOCATIONS_H
#define VCUDA_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* What the key of an entry is. Keys of different kinds may be equal. */
enum allocation_kind {
	ALLOCATED_POINTER,
	ALLOCATED_ARRAY,
	ALLOCATED_MIPMAP,
	ALLOCATED_HANDLE, /* of physical memory (cuMemCreate), which lives as long as references or mappings of it */
	MAPPED_RANGE,     /* the start of the range; `target` is the handle; nothing is booked for it */
	EXTERNAL_MEMORY,  /* its handle */
	EXPORTED_POINTER, /* of a pool's memory; nothing is booked for it */
	GRAPH_EXEC,       /* `target` is what hooks/graph.c knows of its nodes; nothing is booked for it */
};

enum { ANY_SERIAL = 0, NO_DEVICE = -1 };

struct allocation {
	struct allocation *next;
	uint64_t key;
	uint64_t size;
	uint64_t serial;   /* an entry gets the next number when it is first put into the table; 0: it never was */
	uint64_t target;
	uint64_t target_serial; /* of a MAPPED_RANGE: the serial of the handle's entry */
	struct share_hold *shares; /* with other processes, see memory/sharing.h; NULL: there are none */
	uint32_t share_id; /* of the descriptors by which the memory was exported; 0: there are none */
	CUcontext context; /* the memory is destroyed with it; NULL: the memory outlives contexts */
	enum allocation_kind kind;
	unsigned int references; /* beside the first one */
	CUdevice device;
	int card;          /* as in shared/usage.h; USAGE_NO_CARD: nothing is booked */
	bool is_freed;     /* the call that took it out is counted as one (memory/calls.h) */
	bool unlisted;     /* see memory/unlisted.h */
	bool managed;      /* a managed-memory fallback: the card was full */
	bool stream_ordered; /* a managed-memory fallback for memory of a pool */
};

/* Adds the entry. Returns the entry that the table still had for a key that the driver has given out again, or NULL. */
struct allocation *allocations_put(struct allocation *entry);

/* Takes the key's entry out of the table. NULL: the key was not charged here. */
struct allocation *allocations_take(enum allocation_kind kind, uint64_t key);

/* Copies the key's entry. False: there is none. */
bool allocations_find(enum allocation_kind kind, uint64_t key, struct allocation *copy);

/* Calls `change` for the key's entry, which no other thread takes meanwhile. False: there is none, or `change` says so. */
bool allocations_change(enum allocation_kind kind, uint64_t key,
			bool (*change)(struct allocation *entry, void *argument), void *argument);

/* Adds a reference and returns the entry's serial. 0: the key was not charged here. */
uint64_t allocations_reference(enum allocation_kind kind, uint64_t key);

/*
 * Drops a reference of the entry with this serial, since another one may have got the key meanwhile. Takes out and returns
 * the entry if that was the last reference. *known: there was such an entry.
 */
struct allocation *allocations_dereference(enum allocation_kind kind, uint64_t key, uint64_t serial, bool *known);

/* The serial of the next entry. */
uint64_t allocations_serial(void);

/*
 * Takes out the context's entries whose serial is below `before`, linked by `next`. Later entries may belong to a new
 * context at the same address.
 */
struct allocation *allocations_take_context(CUcontext context, uint64_t before);

#endif

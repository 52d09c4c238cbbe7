/*
 * What this process was charged for: the driver's handle -> card and bytes. Thread safe, a few dozen nanoseconds each.
 *
 * Belongs here: the table alone. An entry is made before the driver is asked, so that a granted allocation can always
 * be recorded. A forked child starts with an empty table.
 */
#ifndef VCUDA_ALLOCATIONS_H
#define VCUDA_ALLOCATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* What a key is; keys of different kinds may be equal. */
enum allocation_kind {
	ALLOCATED_POINTER,
	ALLOCATED_ARRAY,
	ALLOCATED_MIPMAP,
	ALLOCATED_HANDLE, /* of physical memory (cuMemCreate): lives as long as references and mappings of it do */
	MAPPED_RANGE,     /* its start; nothing is booked for it, `target` is the handle */
	GRAPH_EXEC,       /* `size` is what its allocation nodes take at most; nothing is booked for it */
};

struct allocation {
	struct allocation *next;
	uint64_t key;
	uint64_t size;
	uint64_t serial;   /* counts up with every entry put */
	uint64_t target;
	CUcontext context; /* destroyed with it; NULL: outlives contexts */
	enum allocation_kind kind;
	unsigned int references; /* more than the first */
	CUdevice device;
	int card;          /* as in shared/usage.h; USAGE_NO_CARD: nothing is booked */
	bool managed;      /* managed memory stands in for device memory: the card was full */
	bool stream_ordered; /* it stands in for a pool's */
};

/* The entry that the table still had for that key, if the driver gave it out anew; else NULL. */
struct allocation *allocations_put(struct allocation *entry);

/* Takes the key's entry out of the table; NULL: it was not charged here. */
struct allocation *allocations_take(enum allocation_kind kind, uint64_t key);

/* A copy of the key's entry; false: there is none. */
bool allocations_find(enum allocation_kind kind, uint64_t key, struct allocation *copy);

/* One more reference; false: it was not charged here. */
bool allocations_reference(enum allocation_kind kind, uint64_t key);

/* One reference less; the entry, taken out, if it was the last. *known: it was charged here. */
struct allocation *allocations_dereference(enum allocation_kind kind, uint64_t key, bool *known);

/* The serial that the next entry will have. */
uint64_t allocations_serial(void);

/* Takes out the context's entries of a serial below `before`, linked by `next`: a new context may have its address. */
struct allocation *allocations_take_context(CUcontext context, uint64_t before);

#endif

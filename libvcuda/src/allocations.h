/*
 * What this process was charged for: device pointer -> card and bytes. Thread safe, a few dozen nanoseconds each.
 *
 * Belongs here: the table alone. An entry is made before the driver is asked, so that a granted allocation can always
 * be recorded. A forked child starts with an empty table.
 */
#ifndef VCUDA_ALLOCATIONS_H
#define VCUDA_ALLOCATIONS_H

#include <stdint.h>

#include "cuda_abi.h"

struct allocation {
	struct allocation *next;
	uint64_t pointer;
	uint64_t size;
	uint64_t serial;   /* counts up with every entry put */
	CUcontext context; /* destroyed with it; NULL: outlives contexts */
	int card;          /* as in usage.h */
};

/* The entry that the table still had for that pointer, if the driver gave it out anew; else NULL. */
struct allocation *allocations_put(struct allocation *entry);

/* Takes the pointer's entry out of the table; NULL: it was not charged here. */
struct allocation *allocations_take(uint64_t pointer);

/* The serial that the next entry will have. */
uint64_t allocations_serial(void);

/* Takes out the context's entries of a serial below `before`, linked by `next`: a new context may have its address. */
struct allocation *allocations_take_context(CUcontext context, uint64_t before);

#endif

/*
 * What keeps physical memory (cuMemCreate) alive: its handles, its mappings, its bindings to objects that several cards share, and its bindings
 * to sparse arrays.
 *
 * Belongs here: the references of an ALLOCATED_HANDLE and the table of bindings. A multicast object is such a handle,
 * for which nothing is booked. Not here: what the memory costs (memory/charge.h, memory/sharing.h), the calls (hooks/vmm.c,
 * hooks/multicast.c).
 */
#ifndef VCUDA_PHYSICAL_H
#define VCUDA_PHYSICAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* What memory can be bound to. Keys of different kinds may be equal. */
enum binder_kind { MULTICAST_OBJECT, LOGICAL_ENDPOINT, SPARSE_ARRAY };

struct binder {
	enum binder_kind kind;
	uint64_t key;    /* the object's or the array's handle, the endpoint's id */
	uint64_t serial; /* of the object's or the array's entry in memory/allocations.h; 0: there is none */
};

struct binding;

/* The binder that has the handle or the id now. */
struct binder physical_binder(enum binder_kind kind, uint64_t key);

/*
 * A call that gives memory another holder, a handle or a descriptor, has the lock for itself from before the driver's call
 * until the holder is counted: else a thread that knows or guesses the handle could use it meanwhile, and what holds the
 * memory then would not be counted. A call that uses a handle or may drop the last reference shares the lock. The driver's
 * own calls must take none. The first two return true. No wait takes much longer than a second, since the driver may make a
 * thread wait for another one: who has had the lock for so long loses it.
 */
static inline bool physical_lock_alone(void);
static inline bool physical_lock_shared(void);
static inline void physical_unlock_alone(bool is_locked);
static inline void physical_unlock_shared(bool is_locked);

/*
 * Drops a reference to the entry with this serial (as for allocations_dereference), and with the last one the charge and
 * what is bound to the object.
 */
void physical_drop(CUmemGenericAllocationHandle handle, uint64_t serial);

/*
 * Begins to bind the memory: adds a reference. NULL with *room: the memory was not charged here. NULL without: there is
 * no memory for the record.
 */
struct binding *physical_begin_binding(CUmemGenericAllocationHandle memory, bool *room);

/* Ends it by the driver's result. `offset`, `size`: the range of the binder that the memory lies behind. */
CUresult physical_end_binding(struct binding *binding, CUresult result, struct binder to, uint64_t offset,
			      uint64_t size);

/* The number of the next binding. Read it before the driver ends bindings: later ones may lie in the same range. */
uint64_t physical_next_binding(void);

/* The driver has ended the bindings of the device's memory in this range of the binder, of those before the number. */
void physical_unbind(struct binder from, CUdevice device, uint64_t offset, uint64_t size, uint64_t before);

/* The driver has destroyed the binder, with its bindings before the number. */
void physical_unbind_all(struct binder from, uint64_t before);

/* ---- inline, since each call that makes or releases memory makes these calls; the rest is for more than one thread ---- */

#define PHYSICAL_ALONE (1u << 31)
extern atomic_uint
	physical_holders; /* threads that share the lock, and PHYSICAL_ALONE: one has it, or waits for them */

void physical_wait_alone(void);
void physical_wait_shared(void);
void physical_let_go(unsigned int kind, unsigned int mask);

static inline bool physical_lock_alone(void)
{
	unsigned int none = 0;

	if (!atomic_compare_exchange_strong(&physical_holders, &none, PHYSICAL_ALONE))
		physical_wait_alone();
	return true;
}

static inline bool physical_lock_shared(void)
{
	if (atomic_fetch_add(&physical_holders, 1) & PHYSICAL_ALONE)
		physical_wait_shared();
	return true;
}

static inline void physical_unlock_alone(bool is_locked)
{
	unsigned int only = PHYSICAL_ALONE;

	if (is_locked && !atomic_compare_exchange_strong(&physical_holders, &only, 0))
		physical_let_go(PHYSICAL_ALONE, PHYSICAL_ALONE);
}

static inline void physical_unlock_shared(bool is_locked)
{
	unsigned int only = 1;

	if (is_locked && !atomic_compare_exchange_strong(&physical_holders, &only, 0))
		physical_let_go(1, ~PHYSICAL_ALONE);
}

#endif

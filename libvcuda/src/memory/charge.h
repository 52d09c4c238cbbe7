/*
 * The charge for one device memory allocation: book it against the card's limit, let the driver allocate, then keep the
 * charge or give it back.
 *
 * Belongs here: what every allocating and freeing wrapper does around the driver's call. Not here: pools, which are
 * charged as a whole (memory/pools.h), the accounting itself (shared/usage.h), and the guard (shared/guard.h).
 */
#ifndef VCUDA_CHARGE_H
#define VCUDA_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "memory/allocations.h"

struct charge {
	enum allocation_kind kind; /* of the key given to charge_end; a wrapper may set it after charge_begin */
	bool entered;
	bool outlives_context;
	bool is_unlisted; /* see memory/unlisted.h; a wrapper may set it after charge_begin */
	CUdevice device; /* NO_DEVICE: the thread has no context */
	uint64_t size;
	struct allocation *entry; /* NULL: nothing is booked */
};

/*
 * Books `size` bytes on the current card. CUDA_ERROR_OUT_OF_MEMORY: the charge is over and the wrapper must not call
 * the driver.
 */
CUresult charge_begin(struct charge *charge, uint64_t size);

/*
 * The same on the card that the call names, for memory bound to no context. NO_DEVICE: it is bound to no card either.
 * CUDA_ERROR_NOT_PERMITTED: the card is another container's MIG instance.
 */
CUresult charge_begin_on(struct charge *charge, CUdevice device, uint64_t size);

/*
 * The same for memory of a stream's pool, where the driver does not report what its pools hold. It may lie on another
 * card.
 */
CUresult charge_begin_stream_ordered(struct charge *charge, uint64_t size);

/*
 * Replaces a guessed size by the real one, once the driver has allocated. False: the limit has no room for the real
 * size.
 */
bool charge_resize(struct charge *charge, uint64_t size);

/*
 * The managed-memory fallback, for a card that is full although the limit has room: on a card that may be
 * oversubscribed, allocates managed memory of the booked size instead of device memory. CUDA_ERROR_OUT_OF_MEMORY: the
 * card may not be oversubscribed, or the driver refused that as well.
 */
CUresult charge_managed_fallback(struct charge *charge, CUdeviceptr *pointer);

/*
 * The whole charge for a fallback that replaces memory of a pool on `device`: books, allocates, keeps it for the
 * pointer.
 */
CUresult charge_managed_fallback_for_pool(CUdevice device, uint64_t size, CUdeviceptr *pointer);

/* True if a fallback was due for memory that managed memory cannot replace. The wrapper then logs that, once. */
bool charge_has_no_fallback(const struct charge *charge, CUresult result);

/* Keeps the charge for `key` if the driver's `result` is success, else gives it back. Returns the program's result. */
CUresult charge_end(struct charge *charge, CUresult result, uint64_t key);
CUresult charge_end_stream_ordered(struct charge *charge, CUresult result, CUdeviceptr pointer);

/*
 * Takes the key's charge. Called before the driver frees the memory: the driver may give out the same key again at
 * once.
 */
struct allocation *charge_take(enum allocation_kind kind, uint64_t key);

/* Gives back the taken charge if the driver's `result` is success, else keeps it. Returns `result`. */
CUresult charge_give_back(struct allocation *entry, CUresult result);

/* The context was destroyed: gives back what was charged in it before `serial`. */
void charge_drop_context(CUcontext context, uint64_t serial);

#endif

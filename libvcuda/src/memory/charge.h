/*
 * One device memory allocation against its card's limit: book, let the driver allocate, then keep or give back.
 *
 * Belongs here: what every allocating and freeing wrapper does around the driver's call, and the guard by which calls
 * that the driver makes to its own exports (they arrive in our wrappers) pass straight through.
 */
#ifndef VCUDA_CHARGE_H
#define VCUDA_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "memory/allocations.h"

enum { NO_DEVICE = -1 };

/* False: pass straight through, since nothing is limited or the call comes from inside the driver. */
bool guard_enter(void);
void guard_leave(void);

/* `call` runs with the guard held, if there is one to hold. */
#define GUARDED(call)                           \
	({                                      \
		bool entered_ = guard_enter();  \
		CUresult result_ = (call);      \
		if (entered_)                   \
			guard_leave();          \
		result_;                        \
	})

struct charge {
	enum allocation_kind kind; /* of the key that charge_end gets; a wrapper may set it after charge_begin */
	bool entered;
	bool outlives_context;
	CUdevice device; /* NO_DEVICE: the thread has no context */
	uint64_t size;
	struct allocation *entry; /* NULL: nothing is booked */
};

/* Books `size` bytes on the current card. CUDA_ERROR_OUT_OF_MEMORY: the driver must not be asked, the charge is over. */
CUresult charge_begin(struct charge *charge, uint64_t size);

/* As above on a card that the call names, for memory that is bound to no context; NO_DEVICE: to no card either. */
CUresult charge_begin_on(struct charge *charge, CUdevice device, uint64_t size);

/* As above for memory of a stream's pool, should the driver not tell what its pools hold: it may lie on another card. */
CUresult charge_begin_stream_ordered(struct charge *charge, uint64_t size);

/* The size was a guess: corrects it once the driver has said. False: the card has no room for what it really takes. */
bool charge_resize(struct charge *charge, uint64_t size);

/*
 * The card is full though the limit has room: on a card that may be oversubscribed, managed memory of the booked size
 * takes the place of device memory. CUDA_ERROR_OUT_OF_MEMORY where it may not.
 */
CUresult charge_stand_in(struct charge *charge, CUdeviceptr *pointer);

/* As above for a pool's memory on `device`, all of it: booked by itself, allocated, and kept for the pointer. */
CUresult charge_stand_in_for_pool(CUdevice device, uint64_t size, CUdeviceptr *pointer);

/* The same was to be done for what managed memory cannot replace: the wrapper says so, once. */
bool charge_could_not_stand_in(const struct charge *charge, CUresult result);

/* Keeps the charge for `key` if the driver's `result` is success, else gives it back; what the program gets. */
CUresult charge_end(struct charge *charge, CUresult result, uint64_t key);
CUresult charge_end_stream_ordered(struct charge *charge, CUresult result, CUdeviceptr pointer);

/* Takes the key's charge before the driver frees it: its next owner may get the same key at once. */
struct allocation *charge_take(enum allocation_kind kind, uint64_t key);

/* Gives the taken charge back if the driver's `result` is success, else keeps it. Returns `result`. */
CUresult charge_give_back(struct allocation *entry, CUresult result);

/* The context is destroyed, and with it what was charged in it before `serial`. */
void charge_drop_context(CUcontext context, uint64_t serial);

#endif

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

#include "allocations.h"
#include "cuda_abi.h"

/* False: pass straight through, since nothing is limited or the call comes from inside the driver. */
bool guard_enter(void);
void guard_leave(void);

struct charge {
	bool entered;
	bool stream_ordered;
	CUdevice device; /* NO_DEVICE: the thread has no context */
	uint64_t size;
	struct allocation *entry; /* NULL: nothing is booked */
};

/* Books `size` bytes on the current card. CUDA_ERROR_OUT_OF_MEMORY: the driver must not be asked, the charge is over. */
CUresult charge_begin(struct charge *charge, uint64_t size);

/* As above for memory of a stream's pool: it outlives contexts and may lie on another card than the current one. */
CUresult charge_begin_stream_ordered(struct charge *charge, uint64_t size);

/* The size was a guess: corrects it once the driver has said. False: the card has no room for what it really takes. */
bool charge_resize(struct charge *charge, uint64_t size);

/* Keeps the charge for `pointer` if the driver's `result` is success, else gives it back; what the program gets. */
CUresult charge_end(struct charge *charge, CUresult result, CUdeviceptr pointer);

/* Takes the pointer's charge before the driver frees it: its next owner may get the same pointer at once. */
struct allocation *charge_take(CUdeviceptr pointer);

/* Gives the taken charge back if the driver's `result` is success, else keeps it. Returns `result`. */
CUresult charge_give_back(struct allocation *entry, CUresult result);

/* The context is destroyed, and with it what was charged in it before `serial`. */
void charge_drop_context(CUcontext context, uint64_t serial);

#endif

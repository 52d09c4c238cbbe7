/*
 * A lock for each slot of the usage region, which the kernel frees when its process ends or executes another program.
 *
 * Belongs here: taking the lock, and asking whether somebody holds it. It tells the life of processes whose pid says
 * nothing here: those of another pid namespace, and all where /proc is missing. Not here: what follows from it
 * (shared/usage_slots.c).
 *
 * A mapping holds the lock, not a descriptor: programs close descriptors that they did not open.
 */
#ifndef VCUDA_SLOT_LOCK_H
#define VCUDA_SLOT_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Takes the slot's lock until this process ends. A forked child does not have it. False: it is refused or is not kept. */
bool slot_lock_take(uint32_t slot);

/* Ends the lock that this process has taken. */
void slot_lock_drop(void);

/* True only if nobody holds it. */
bool slot_lock_is_free(uint32_t slot);

#endif

/*
 * Work that is held back. A program whose thread launches far ahead of the card is not held up while others have it: its
 * launches go behind gates (compute/gates.h), and a thread of libvcuda waits in its place (compute/gate_keeper.h). What is
 * behind a gate is *held*: it is not under way, and nothing is reserved for it.
 *
 * Belongs here: for whom and how much work is held, and threads that wait until there is room, or nothing is held.
 */
#ifndef VCUDA_HELD_H
#define VCUDA_HELD_H

#include "compute/batch.h"

/*
 * Whether the launch goes behind a gate, since it may not be made now or others of its context are held. It waits for room
 * there. False: nothing is held, and the launch has to wait by itself.
 */
bool held_hold(struct launch *launch, uint64_t now);

/* As contexts_hold(), as soon as nothing of the context is held: else the driver would wait for it. */
struct compute_context *held_drained(CUcontext handle);

/*
 * The first of what is held is about to go. A program that has launched little behind it waits for it: gates do not help. Under
 * the lock.
 */
void held_note_depth(const struct compute_context *context, uint64_t now);

/* Some of what was held has gone: wakes those that wait, if there is room for much more. Under the lock. */
void held_note_room(const struct compute_context *context);

#endif

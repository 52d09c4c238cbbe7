/*
 * Work that is held back. A program whose thread launches far ahead of the card is not held up while others have it, or it
 * has no tokens: its streams wait for semaphores before these launches (compute/semaphores.h), and a thread of libvcuda waits
 * in its place (compute/releaser.h). What is behind such a wait is *held*: it is not under way, and nothing is reserved for it.
 *
 * Belongs here: for whom and how much work is held, and threads that wait until there is room, or nothing is held.
 */
#ifndef VCUDA_HELD_H
#define VCUDA_HELD_H

#include "compute/batch.h"

/*
 * Whether the launch is held, since it may not be made now or others of its context are held. The thread waits for room.
 * False: nothing is held, and the launch has to wait by itself.
 */
bool held_hold(struct launch *launch, uint64_t now);

/* Waits until nothing of the context is held. A call that destroys it would wait for that in the driver. */
void held_drain(CUcontext handle);

/*
 * The first of what is held is about to go. A program that has launched little more waits for it: it is not helped. Under the
 * lock.
 */
void held_note_depth(const struct compute_context *context, uint64_t now);

/* What was released on an idle card began `late` ns after that. Where streams go on so late, threads do better. */
void held_note_start(uint64_t late, uint64_t now);

/* Some of what was held in the slot has gone: wakes those that wait, if there is room for much more. Under the lock. */
void held_note_room(const struct compute_context *context, const struct stream_slot *slot);

#endif

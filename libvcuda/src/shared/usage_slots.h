/*
 * The slots of the usage region: this process's own, from its first charge to its exit, and those that dead processes
 * left.
 *
 * Belongs here: claiming, leaving and reaping slots. Only the files usage*.c include this; the interface for all
 * others is shared/usage.h. What is booked in a slot is decided there.
 */
#ifndef VCUDA_USAGE_SLOTS_H
#define VCUDA_USAGE_SLOTS_H

#include <pthread.h>

#include "base/process.h"
#include "shared/usage_region.h"

enum { NO_SLOT = -1 };

/*
 * Given in place of a card, these reap all slots, or only this process's; a card reaps those that hold something of
 * it.
 */
enum { ANY_CARD = -1, OWN_ONLY = -2 };

extern pthread_mutex_t usage_slots_lock; /* serializes the threads of this process: opening, claiming, reaping */

/* Call once, before the region is used. */
void usage_slots_watch_forks(void);

/* The identity of this process. Called with the lock held. */
const struct process_identity *usage_slots_identity(void);

/* This process's slot. NO_SLOT: it has none. */
int usage_slots_current(void);

/* This process's slot, valid until usage_slots_leave(). NO_SLOT: it has none and gets none. */
int usage_slots_enter(struct vgpu_usage *usage);
void usage_slots_leave(void);

/* The same, valid while the caller's call is counted in usage_calls. */
int usage_slots_in_call(struct vgpu_usage *usage);

/*
 * Clears the slot's words for work on the card, the first time. A tenant may have written to the words of a free slot,
 * and launches would then wait for work that this process never had.
 */
void usage_slots_begin_time(struct vgpu_usage *usage, int card, uint32_t slot);

/* Frees the slots of dead processes. */
void usage_slots_reap(struct vgpu_usage *usage, int card, enum look look);

/* The same for queries, which some programs make all the time. */
void usage_slots_reap_for_query(struct vgpu_usage *usage, int card);

static inline uint32_t usage_slots_seen(const struct vgpu_usage *usage)
{
	uint64_t seen = usage_region_load(&usage->slots_seen);

	return seen < VGPU_USAGE_SLOTS ? (uint32_t)seen : VGPU_USAGE_SLOTS;
}

/* Cards take places in order and never give them up, so a loop that stops here touches no page of an unused place. */
static inline bool usage_slots_has_card(const struct vgpu_usage *usage, uint32_t card)
{
	return card < VGPU_LIMITS_MAX_CARDS && usage_region_load(&usage->cards[card].key);
}

#endif

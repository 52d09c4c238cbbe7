/*
 * Slots of the usage region: this process's own, from its first charge to its end, and what the dead left in theirs.
 * For usage*.c; others see shared/usage.h.
 */
#ifndef VCUDA_USAGE_SLOTS_H
#define VCUDA_USAGE_SLOTS_H

#include <pthread.h>

#include "base/process.h"
#include "shared/usage_region.h"

enum { NO_SLOT = -1 };

/* Whose slots are looked at, where a card's place would mean those who hold something of it. */
enum { ANY_CARD = -1, OWN_ONLY = -2 };

extern pthread_mutex_t usage_lock; /* this process's threads: opening, claiming, reaping */

/* Once, before anything of the region is used. */
void usage_watch_forks(void);

/* This process. Called with the lock held. */
const struct process_identity *usage_identity(void);

/* This process's slot, or NO_SLOT if it has none. */
int usage_slot_now(void);

/* This process's slot until usage_leave_slot(); NO_SLOT: it has none and gets none. */
int usage_enter_slot(struct vgpu_usage *usage);
void usage_leave_slot(void);

/* What a tenant wrote to the words of a free slot would be this process's work under way, and be waited for. */
void usage_begin_time(struct vgpu_usage *usage, int card, uint32_t slot);

/* Frees the slots of the dead. The second for questions, which some programs ask all the time. */
void usage_reap_dead(struct vgpu_usage *usage, int card, enum look look);
void usage_reap_to_tell(struct vgpu_usage *usage, int card);

static inline uint32_t slots_seen(const struct vgpu_usage *usage)
{
	uint64_t seen = load(&usage->slots_seen);

	return seen < VGPU_USAGE_SLOTS ? (uint32_t)seen : VGPU_USAGE_SLOTS;
}

/* Places are taken in turn and never given up: the pages of the others are not touched. */
static inline bool card_is_known(const struct vgpu_usage *usage, uint32_t card)
{
	return card < VGPU_LIMITS_MAX_CARDS && load(&usage->cards[card].key);
}

#endif

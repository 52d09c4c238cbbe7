/*
 * The schedule file: the host's schedule for each card of this container (vgpu_card.h), which the host changes while
 * libvcuda reads it.
 *
 * Belongs here: mapping the file, finding a card's schedule and copying it consistently. Not here: what a launch does
 * with it (compute/schedule.h).
 */
#ifndef VCUDA_SCHEDULE_FILE_H
#define VCUDA_SCHEDULE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu_card.h"

struct card_schedule {
	uint64_t seen;        /* the sequence of the schedule that was copied */
	uint64_t period;      /* this and the following as in struct vgpu_card_page; 0: not set */
	uint64_t lent_until;
	uint64_t lent_rate;
	uint64_t tenants;     /* 0: not set */
	uint64_t share;        /* millionths; 0: not set */
	uint64_t may_borrow;
};

/* The card's schedule. NULL: there is none now. Looks for the file at most once a second. */
const struct vgpu_card_page *schedule_file_find(const uint8_t uuid[16], uint64_t now);

/* Whether the schedule has changed since `seen`. Costs one load. */
static inline bool schedule_file_has_changed(const struct vgpu_card_page *published, uint64_t seen)
{
	return __atomic_load_n(&published->sequence, __ATOMIC_ACQUIRE) != seen;
}

/* Copies the schedule. False: the host is writing it, so try again. A period that makes no sense becomes 0. */
bool schedule_file_read(const struct vgpu_card_page *published, struct card_schedule *schedule);

/* What to add to a time of this container to get the host's. */
int64_t schedule_file_clock_offset(void);

#endif

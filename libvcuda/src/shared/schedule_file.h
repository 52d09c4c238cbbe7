/* What the host tells this container of its cards: the card pages (vgpu_card.h), read while they change. */
#ifndef VCUDA_CARD_PAGE_H
#define VCUDA_CARD_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "vgpu_card.h"

struct card_times {
	uint64_t seen;        /* the page's sequence */
	uint64_t period;      /* these as in struct vgpu_card_page; 0: not told */
	uint64_t lent_until;
	uint64_t lent_rate;
	uint64_t tenants;     /* 0: not told */
	uint64_t share;        /* millionths; 0: not told */
};

/* The card's page; NULL: there is none now. Looks into the file system at most once a second. */
const struct vgpu_card_page *card_page_find(const uint8_t uuid[16], uint64_t now);

/* Whether it moved since `seen`: one load. */
static inline bool card_page_moved(const struct vgpu_card_page *page, uint64_t seen)
{
	return __atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE) != seen;
}

/* What it says; false: it is being written, ask again. A period that is nonsense comes out as none. */
bool card_page_read(const struct vgpu_card_page *page, struct card_times *times);

/* What to add to this container's time for the host's. */
int64_t card_page_clock_offset(void);

#endif

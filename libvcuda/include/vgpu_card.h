/*
 * The schedule file: one schedule per card, with the share that a container has beside the others there. Each container
 * has one file. The host writes it with pwrite (the hook at claim and release, the node daemon live). It is mounted
 * read-only at VGPU_CARDS_PATH beside the limits, and libvcuda reads it through a shared mapping.
 * docs/compute-limit.md has the rule.
 *
 * Belongs here: the file's layout. Not how the host computes it: config/vgpu/config/core_schedule.py, which mirrors the
 * layout. A test compiles this header and compares the two. All integers are in host byte order. Times are ns of the
 * host's CLOCK_MONOTONIC, which is the container's plus `clock_offset`.
 *
 * Without the file, or without a schedule for a card, only the container's own token bucket holds it to its share, and
 * its work mixes with that of others in the hardware's own order. A schedule changes like the limits: its sequence is
 * odd meanwhile.
 */
#ifndef VGPU_CARD_H
#define VGPU_CARD_H

#include <stdint.h>

#include "vgpu_limits.h"

#define VGPU_CARDS_PATH VGPU_PRIVATE_DIR "/cards"
/* For each card 4096 zero bytes, named by its UUID's 32 hex digits, one for all containers: see compute/presence.h */
#define VGPU_PRESENCE_DIR VGPU_PRIVATE_DIR "/presence"
#define VGPU_CARDS_MAGIC 0x52434756u /* "VGCR" in little-endian memory */
#define VGPU_CARDS_VERSION 2u

struct vgpu_card_page {
	uint8_t uuid[16];
	uint64_t sequence;     /* even: stable; odd: being written */
	uint64_t period;       /* ns over which each container is to have its share; 0: the host set none */
	uint64_t lent_until;   /* until then `lent_rate` counts instead of the share */
	uint32_t lent_rate;    /* percent; never more than the limits file's core_limit is used */
	uint32_t tenants;      /* containers with a share of this card; 1: no other one can be in the way */
	uint32_t share;        /* millionths of the card's time: the container's share less what changing containers
				* costs it; 0: all of its share. Never more than the limits file's cores is used */
	uint32_t may_borrow;   /* 1: while nobody else wants the card it may use up to core_limit without a loan */
	uint8_t reserved[72];  /* zero */
};

struct vgpu_card_pages {
	uint32_t magic;
	uint32_t version;
	int64_t clock_offset;  /* host's CLOCK_MONOTONIC less the container's: not 0 in a time namespace */
	uint32_t page_count;
	uint8_t reserved[44];  /* zero */
	struct vgpu_card_page pages[VGPU_LIMITS_MAX_CARDS];
};

#ifdef __cplusplus
static_assert(sizeof(struct vgpu_card_page) == 128, "vgpu_card_page");
static_assert(sizeof(struct vgpu_card_pages) == 64 + 32 * 128, "vgpu_card_pages");
#else
_Static_assert(sizeof(struct vgpu_card_page) == 128, "vgpu_card_page");
_Static_assert(sizeof(struct vgpu_card_pages) == 64 + 32 * 128, "vgpu_card_pages");
#endif

#endif

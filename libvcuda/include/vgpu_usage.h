/*
 * The usage region: what the processes of one container hold of its cards, shared among them at VGPU_USAGE_PATH.
 *
 * Created and written by libvcuda; the host reads it with pread for this container's figures only, since a tenant can
 * write it. A file of zeros is a valid empty region apart from its identity word. All words are in host byte order and
 * changed with atomic operations alone: there is no lock that a killed or stopped process could keep.
 *
 * A slot belongs to the process in `owner` (0: free, then all its charges are 0). Whoever finds the owner dead takes
 * the slot over by a compare-and-swap to its own identity with VGPU_USAGE_REAPING, zeroes the charges and frees it; if
 * that process dies meanwhile, the next one does the same.
 *
 * What a container uses of a card is the sum of `reserved` over the slots. A reservation first adds to `attempting`,
 * then sums both words of all slots: the last of several racing processes sees all the others, so the sum of what was
 * let through never exceeds the limit. It then moves to `reserved` (added there before it is taken from `attempting`;
 * readers read `attempting` first, so that it is never missed).
 *
 * What the driver takes by itself (contexts, code) is booked in `reserved` when its owner has asked NVML, and `overheads`
 * tells how much of it that is. Until then a bit in `unseen` says that there is something: it counts as if it were
 * VGPU_USAGE_UNSEEN_MOST, and only who finds no room then asks NVML, for all such processes.
 *
 * Time on a card (docs/limiter.md) is shared likewise: `level` is what the container may still use, and what a process
 * has reserved of it for work under way stands in its slot, so that a dead process's is given back. Times are ns of the
 * container's CLOCK_MONOTONIC. Whatever stands here is believed within bounds: garbage spoils this container's share.
 */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include <stdint.h>

#include "vgpu_limits.h"

#define VGPU_USAGE_IDENTITY (((uint64_t)2 << 32) | 0x45535556u) /* version 2, "VUSE" in little-endian memory */
#define VGPU_USAGE_SLOTS 1024u
#define VGPU_USAGE_OVERHEAD_UNIT 4096u
#define VGPU_USAGE_UNSEEN_MOST ((uint64_t)1 << 30) /* a context of current cards and much code */

#define VGPU_USAGE_PID_BITS 22                          /* the kernel's PID_MAX_LIMIT is 2^22 */
#define VGPU_USAGE_REAPING ((uint64_t)1 << 63)

struct vgpu_usage_card {
	uint64_t key;          /* mixed from the UUID, never 0; 0: free */
	uint8_t uuid[16];
	uint64_t reserved0;
};

struct vgpu_usage_slot {
	uint64_t owner;        /* start time in clock ticks << VGPU_USAGE_PID_BITS | pid, both as in the container */
	uint64_t namespaces;   /* inodes of the owner's pid (low half) and time namespace; 0: not known yet, not judged */
	uint64_t image;        /* random per exec: tells what was charged before an exec of the same process */
	uint64_t managed;      /* of the owner's charges, bytes in managed memory because a card was full: for people */
	uint64_t unseen;       /* a bit per place in `cards`: the owner has contexts or code there, not booked so far */
};

struct vgpu_usage_charge {
	uint64_t attempting;
	uint64_t reserved;
};

#define VGPU_USAGE_TIME_UNIT 16u /* ns in one of in_flight */

struct vgpu_usage_time {
	int64_t level;         /* ns of the card that may be used now; below 0: debt */
	uint64_t stamp;        /* until when the share was added to it */
	uint64_t holder;       /* slot + 1 of the process whose turn it is within the container; 0: nobody's */
	uint64_t held_since;
	uint64_t held_used;    /* what `used` was then */
	uint64_t drains_at;    /* when what the holder has under way will be done, by its estimate */
	uint64_t progress;     /* when work last came to its end, or began after none was under way */
	uint64_t patience;     /* ns without progress after which the gate opens */
	uint64_t used;         /* ns used in all: this container's claim, for the host to check */
	uint64_t wanted;       /* when a launch was last asked for, to a millisecond or so */
	uint64_t waited;       /* when a launch last had to wait */
	uint64_t longest;      /* ns of the longest kernel of late: the host calls nobody idle who may be in one */
	uint64_t reserved[4];
};

struct vgpu_usage_visit {
	uint64_t until;         /* when the container's visit to its cards ends, or ended */
	uint64_t waiting_since; /* host's time; 0: no process waits for a visit */
};

struct vgpu_usage_flight {
	uint32_t in_flight;    /* reserved for work under way, in VGPU_USAGE_TIME_UNIT */
	uint32_t waiting;      /* since when a launch waits, in 1024 ns, never 0; 0: none does. A futex */
};

struct vgpu_usage {
	uint64_t identity;
	uint64_t slots_seen;   /* slots at this index and above were never used */
	struct vgpu_usage_visit visit;
	uint64_t reserved0[4];
	struct vgpu_usage_card cards[VGPU_LIMITS_MAX_CARDS];
	struct vgpu_usage_slot slots[VGPU_USAGE_SLOTS];
	struct vgpu_usage_charge charges[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS];
	uint32_t overheads[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS]; /* in VGPU_USAGE_OVERHEAD_UNIT, rounded up */
	struct vgpu_usage_time times[VGPU_LIMITS_MAX_CARDS];
	struct vgpu_usage_flight flights[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS];
};

_Static_assert(sizeof(struct vgpu_usage) == 64 + 32 * 32 + 1024 * 40 + 32 * 1024 * (16 + 4 + 8) + 32 * 128, "vgpu_usage");
_Static_assert(sizeof(struct vgpu_usage) < 1 << 20, "vgpu_usage fits a tmpfs of 1 MiB");

#endif

/*
 * The usage region: what the processes of one container hold of its cards, shared among them at VGPU_USAGE_PATH.
 *
 * Belongs here: the region's layout and its rules. Not the code that follows them (shared/usage.h). libvcuda creates
 * and writes the region. The host reads it with pread, and only for this container's figures, since a tenant can
 * write it. A file of zeros is a valid empty region apart from its identity word. All words are in host byte order
 * and change by atomic operations alone: there is no lock that a killed or stopped process could keep.
 *
 * A slot belongs to the process in `owner` (0: it is free, and all its charges are 0). A process that finds the owner
 * dead takes the slot over by a compare-and-swap to its own identity with VGPU_USAGE_REAPING, zeroes the charges and
 * frees the slot. If that process dies meanwhile, the next one does the same. Within a pid namespace, pid and start time
 * tell who is dead. Across namespaces the slot's lock tells it (shared/slot_lock.h), if the owner could take it.
 *
 * What a container uses of a card is the sum of `reserved` over the slots. A reservation first adds to `attempting`,
 * then sums both words of all slots. The last of several racing processes sees all the others, so the sum of the
 * reservations that succeed never exceeds the limit. The reservation then moves to `reserved`. The process adds it
 * there before it takes it from `attempting`, and readers read `attempting` first, so that they never miss it.
 *
 * What the driver takes by itself (contexts, code) is booked in `reserved` when the owner has queried NVML, and
 * `overheads` is how much of `reserved` that is. Until then a bit in `unaccounted` marks it: it counts as
 * VGPU_USAGE_UNACCOUNTED_MOST bytes. Only a process that then finds no room queries NVML, for all such processes. A
 * further context of a process may take nothing. VGPU_USAGE_EXPECTED tells that nobody knows yet, so who needs that room
 * waits.
 * `unlisted` is how much of `reserved` NVML lists with no process: managed memory, and what only descriptors keep.
 *
 * The container's processes share time on a card (docs/compute-limit.md) in the same way. `level` is the container's
 * tokens. What a process has reserved for work under way stands in its slot, so that a dead process's reservation is
 * given back. Times are ns of the container's CLOCK_MONOTONIC. libvcuda takes every word within bounds: garbage
 * spoils this container's share.
 */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include <stdint.h>

#include "vgpu_limits.h"

#define VGPU_USAGE_IDENTITY (((uint64_t)2 << 32) | 0x45535556u) /* version 2, "VUSE" in little-endian memory */
#define VGPU_USAGE_SLOTS 1024u
#define VGPU_USAGE_SHARES 16u /* VGPU_USAGE_PATH and a hex digit: files for locks (shared/share_locks.h) */
#define VGPU_USAGE_COUNTS ((uint64_t)1)         /* libvcuda counts `throttled`, `refusals` and `waits` */
#define VGPU_USAGE_LOCKS_REFUSED ((uint64_t)2)  /* a sandbox refuses the locks by which containers take turns */
#define VGPU_USAGE_WAITS_REFUSED ((uint64_t)4)  /* it refuses the waits by which they are woken */
#define VGPU_USAGE_CHUNK_TRIED ((uint64_t)8)    /* a process finds out if pools grow by less, or has */
#define VGPU_USAGE_LOCKS_SLOW ((uint64_t)16)    /* those locks take long: it takes no turns on a card for a while */
#define VGPU_USAGE_CHUNK_SHIFT 8u /* of `marks`: 1 + log2 of a multiple of the bytes by which pools grow; 0: unknown */
#define VGPU_USAGE_CHANGE_SHIFT 8u
#define VGPU_USAGE_OVERHEAD_UNIT 4096u
#define VGPU_USAGE_EXPECTED ((uint32_t)1 << 31) /* in `overheads`: a part is booked for a context in the making */
#define VGPU_USAGE_UNLISTED_UNIT ((uint64_t)2 << 20)
#define VGPU_USAGE_UNACCOUNTED_MOST ((uint64_t)1 << 30) /* a context of current cards and much code */

#define VGPU_USAGE_CREATING_SHIFT 32u /* of `unaccounted`: the bits of contexts that are being made */
#define VGPU_USAGE_PID_BITS 22 /* the kernel's PID_MAX_LIMIT is 2^22 */
#define VGPU_USAGE_REAPING ((uint64_t)1 << 63)
#define VGPU_USAGE_UNLOCKED ((uint64_t)1) /* of `image`: the owner does not hold its slot's lock */

struct vgpu_usage_card {
	uint64_t key; /* mixed from the UUID, never 0; 0: free */
	uint8_t uuid[16];
	uint64_t context; /* the least overhead in bytes that a process here had, also one that was refused; 0: none */
};

struct vgpu_usage_slot {
	uint64_t owner; /* start time in clock ticks << VGPU_USAGE_PID_BITS | pid, both as in the container */
	uint64_t namespaces; /* inodes of the owner's pid (low half) and time namespace; 0: not recorded yet */
	uint64_t
		image; /* random per exec, see VGPU_USAGE_UNLOCKED; what the process charged before differs; 0: not yet */
	uint64_t managed; /* of the owner's charges, bytes in managed memory because a card was full: for people */
	uint64_t
		unaccounted; /* two bits per place in `cards`: there are unaccounted contexts or code; one is being made */
};

struct vgpu_usage_charge {
	uint64_t attempting;
	uint64_t reserved;
};

#define VGPU_USAGE_TIME_UNIT 16u /* ns in one unit of `in_flight` */
#define VGPU_USAGE_WAITS 5u /* ranges of waits: below 1 ms, 10 ms, 100 ms and 1 s, and longer */

struct vgpu_usage_time {
	int64_t level; /* tokens: ns of the card that may be used now; below 0: debt */
	uint64_t stamp; /* until when the share was added to it */
	uint64_t holder; /* slot + 1 of the process that has the time slice within the container; 0: none */
	uint64_t held_since; /* when the holder's time slice began */
	uint64_t held_used; /* what `used` was at `held_since` */
	uint64_t drains_at; /* when the holder's work under way should be done, by its estimates */
	uint64_t progress; /* when work last came to its end, or began after none was under way */
	uint64_t patience; /* ns without progress after which a launch is let through */
	uint64_t used; /* ns used in all: this container's own figure, for the host to check */
	uint64_t wanted; /* when a launch was last requested, to a millisecond or so */
	uint64_t waited; /* when a launch last had to wait */
	uint64_t longest; /* ns of the longest recent kernel: a container that may be in one is not idle */
	uint64_t throttled; /* ns that launches waited in all, each thread's by itself; this and the rest: for people */
	uint32_t refusals; /* calls that got no device memory because of the limit */
	uint32_t waits[VGPU_USAGE_WAITS]; /* launches that waited, by how long */
};

struct vgpu_usage_slice {
	uint64_t until; /* when the container's time slice on its cards ends, or ended */
	uint64_t waiting_since; /* host's time; 0: no process waits for a time slice */
};

struct vgpu_usage_flight {
	uint32_t in_flight; /* reserved for work under way, in VGPU_USAGE_TIME_UNIT */
	uint32_t waiting; /* a futex: since when a launch waits, in 1024 ns, never 0; 0: none waits */
};

struct vgpu_usage {
	uint64_t identity;
	uint64_t slots_seen; /* slots at this index and above were never used */
	struct vgpu_usage_slice slice;
	uint64_t share_changes; /* how often processes shared memory or ended that; 0: never (shared/share_locks.h) */
	uint64_t marks; /* VGPU_USAGE_COUNTS, VGPU_USAGE_LOCKS_REFUSED; 0: libvcuda is of a version without marks */
	uint64_t
		change; /* ns that a change of contexts takes << VGPU_USAGE_CHANGE_SHIFT | place of the card; 0: unknown */
	uint64_t markings; /* how often processes set a bit of `unaccounted` that says that there is some */
	struct vgpu_usage_card cards[VGPU_LIMITS_MAX_CARDS];
	struct vgpu_usage_slot slots[VGPU_USAGE_SLOTS];
	struct vgpu_usage_charge charges[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS];
	uint32_t overheads[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS]; /* in VGPU_USAGE_OVERHEAD_UNIT and EXPECTED */
	struct vgpu_usage_time times[VGPU_LIMITS_MAX_CARDS];
	struct vgpu_usage_flight flights[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS];
	uint16_t unlisted[VGPU_LIMITS_MAX_CARDS][VGPU_USAGE_SLOTS]; /* in VGPU_USAGE_UNLISTED_UNIT, rounded up */
};

_Static_assert(sizeof(struct vgpu_usage) == 64 + 32 * 32 + 1024 * 40 + 32 * 1024 * (16 + 4 + 8 + 2) + 32 * 128,
	       "vgpu_usage");
_Static_assert(sizeof(struct vgpu_usage) < 1 << 20, "vgpu_usage fits a tmpfs of 1 MiB");

#endif

/*
 * The accounting of what the container's processes hold of each card, in the shared usage region (vgpu_usage.h).
 *
 * Belongs here: the region's life, this process's slot, reservations that cannot exceed a limit, and reaping what dead
 * processes held. Not here: what the figures are used for (memory/ and compute/). Every function may be called from any
 * thread.
 */
#ifndef VCUDA_USAGE_H
#define VCUDA_USAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { USAGE_NO_CARD = -1 };

/* The card's place in the region. USAGE_NO_CARD: there is no region or no place left, which is logged once. */
int usage_card(const uint8_t uuid[16]);

struct usage_limit {
	uint64_t memory;
	uint64_t overhead; /* bytes that the driver holds beside the allocations, measured by the host; 0: unknown */
};

/*
 * Books another `size` bytes for this process if the container then holds at most the limit. If that depends on
 * unaccounted overhead, calls the function given to usage_set_lookup. That function books this process's overhead and
 * returns the others'.
 */
bool usage_reserve(int card, uint64_t size, struct usage_limit limit);

/* The same within a call that is counted in usage_calls (memory/calls.h): the slot stays while there are any. */
bool usage_reserve_in_call(int card, uint64_t size, struct usage_limit limit);
extern atomic_uint usage_calls;

void usage_set_lookup(uint64_t (*lookup)(int card, const uint8_t uuid[16]));

/* The same for this process's overhead. `others` is the unaccounted overhead of other processes; no lookup is made. */
bool usage_reserve_overhead(int card, uint64_t size, struct usage_limit limit, uint64_t others);

/* Books what the card holds already, even if there is no room. False: this process has no slot. */
bool usage_force(int card, uint64_t size);

void usage_release(int card, uint64_t size);

/*
 * Records how much of this process's bookings is overhead, and whether a further context is expected in it, which may take
 * nothing. Call it before overhead is booked and after it is released.
 */
void usage_set_overhead(int card, uint64_t bytes, bool is_expected);

/* Records how much of this process's bookings NVML lists with no process. */
void usage_set_unlisted(int card, uint64_t bytes);

/* Records that a process had so much overhead on the card, for the host. The least that was ever recorded stays. */
void usage_saw_overhead(int card, uint64_t bytes);

/* Records whether this process has unaccounted overhead: whether the driver may hold more for it than is booked. */
void usage_set_unaccounted(int card, bool unaccounted);

/* Whether the limit has room even for the most that the unaccounted overhead may be. */
bool usage_has_room(int card, struct usage_limit limit);

/*
 * Whether the overhead brings the bookings to more than `allowed` beyond the limit. Not so if the allocations alone
 * exceed it: then the limit was lowered. Calls the lookup, as usage_reserve does, if unaccounted overhead decides.
 */
bool usage_overhead_exceeds(int card, struct usage_limit limit, uint64_t allowed);

/* How many processes have unaccounted overhead. */
unsigned int usage_unaccounted_count(int card);

/* Records whether this process is making a context whose size it has not booked. The size counts when it is made. */
void usage_set_creating(int card, bool creating);

/* The least overhead that a process of the container had on the card, so the size of a context. 0: unknown. */
uint64_t usage_context_size(int card);

/* The bytes that all bookings together leave of the limit. */
uint64_t usage_left(int card, struct usage_limit limit);

/* The bytes that this process has booked. */
uint64_t usage_own(int card);

/* Records that `change` more of the booked bytes lie in managed memory, since the card was full. */
void usage_managed(int64_t change);

struct usage_process {
	unsigned int pid; /* in this process's pid namespace */
	uint64_t held;
	uint64_t overhead; /* the part of `held` that is overhead, or expected for a context in the making */
	uint64_t unlisted; /* the part of `held` that NVML lists with no process */
	bool unaccounted; /* the process has unaccounted overhead */
	bool creating;    /* see usage_set_creating */
};

/*
 * What the processes of other pid namespaces have unaccounted, of which no NVML list tells: the size of a context each, as
 * far as it is known.
 */
uint64_t usage_foreign_unaccounted(int card);

/* Lists the living processes of this pid namespace that hold something of the card. Returns their number. */
unsigned int usage_processes(const uint8_t uuid[16], struct usage_process *list, unsigned int room);

/* Where the time of a card is accounted, and this process's slot in it. */
struct vgpu_usage_time;
struct vgpu_usage_flight;
struct vgpu_usage_slice;
struct usage_time {
	struct vgpu_usage_time *time;
	struct vgpu_usage_slice *slice;
	struct vgpu_usage_flight *flights; /* of all slots */
	uint32_t slot;
};

/* False: there is no region, no slot or no place for the card. */
bool usage_time(const uint8_t uuid[16], struct usage_time *place);

/* A launch has waited for so long. */
void usage_waited(struct vgpu_usage_time *time, uint64_t ns);

/* A call got no memory of the card because of the limit. */
void usage_refused(int card);

/* A change of contexts takes the card of `time` so long, in ns. */
void usage_change_measured(const struct vgpu_usage_time *time, uint64_t ns);

/*
 * A power of two in bytes, `most` at most: what the driver's pools grow by divides it, as far as the container's processes
 * have found out. usage_pool_chunk_found returns what is known then.
 */
uint64_t usage_pool_chunk(uint64_t most);
uint64_t usage_pool_chunk_found(uint64_t bytes);

/* One process at a time finds out more where there is no room. If it has not, `again` is false, and none tries again. */
bool usage_pool_chunk_try(void);
void usage_pool_chunk_tried(bool again);

/* A sandbox refuses the locks by which containers take turns. */
void usage_locks_refused(void);

/* Those locks take so long that the container takes no turns on a card for a while. */
void usage_locks_slow(bool are_slow);

/* A sandbox refuses the waits by which containers are woken. */
void usage_waits_refused(void);

/* The number of slots that were ever used: those at this index and above never were. */
uint32_t usage_slot_count(void);

/* The container's card at the place `index`. NULL: no card has that place. */
struct vgpu_usage_time *usage_time_at(int index, const struct vgpu_usage_flight **flights);

/* Takes back what dead processes held. Costs system calls for each slot. */
void usage_reap(void);

/*
 * What live processes have booked, plus the larger of `unbooked` and what the host's figure has beyond the bookings.
 * Creates no region: without one, no process holds anything. False: the region cannot be read.
 */
bool usage_held(const uint8_t uuid[16], uint64_t unbooked, uint64_t overhead, uint64_t *held);

#endif

/*
 * What the container's processes hold of each card: the accounting in the shared usage region (vgpu_usage.h).
 *
 * Belongs here: the region's life, this process's slot, reservations that cannot exceed a limit, and taking back what
 * dead processes held. Not what the figures are for. Every function may be called from any thread.
 */
#ifndef VCUDA_USAGE_H
#define VCUDA_USAGE_H

#include <stdbool.h>
#include <stdint.h>

enum { USAGE_NO_CARD = -1 };

/* The card's place in the region; USAGE_NO_CARD (and a message, once): there is no region or no place left. */
int usage_card(const uint8_t uuid[16]);

struct usage_limit {
	uint64_t memory;
	uint64_t overhead; /* what the driver holds for the container beside its allocations, as the host saw; 0: unknown */
};

/*
 * Books `size` more bytes on this process if the container then holds at most the limit. When that hangs on what the
 * driver itself took and nobody has looked at, the function given to usage_look_with is asked: it books this process's
 * own and tells the others'.
 */
bool usage_reserve(int card, uint64_t size, struct usage_limit limit);
void usage_look_with(uint64_t (*look)(int card, const uint8_t uuid[16]));

/* As above for what the driver itself took: `others` is what it did for others, not booked. Asks nobody. */
bool usage_reserve_overhead(int card, uint64_t size, struct usage_limit limit, uint64_t others);

/* Books what the card holds already, room or not; false: it cannot be booked. */
bool usage_force(int card, uint64_t size);

void usage_release(int card, uint64_t size);

/* Says how much of what this process has booked is the driver's own; before it is booked, after it is given back. */
void usage_tell_overhead(int card, uint64_t bytes);

/* Says whether the driver may hold more for this process than is booked. */
void usage_unseen(int card, bool unseen);

/* Whether the limit has room for the most that may be unseen. */
bool usage_has_room(int card, struct usage_limit limit);

/* How many processes have something unseen. */
unsigned int usage_unseen_count(int card);

/* What this process has booked. */
uint64_t usage_own(int card);

/* Notes that `change` more bytes of what is booked lie in managed memory, since the card was full. */
void usage_managed(int64_t change);

struct usage_process {
	unsigned int pid; /* in this process's pid namespace */
	uint64_t held;
	bool unseen; /* the driver may hold more for it */
};

/* The living processes that hold something of the card, as far as this pid namespace has them; their number. */
unsigned int usage_processes(const uint8_t uuid[16], struct usage_process *list, unsigned int room);

/* Where the card's time is accounted, and this process's slot in it; false: there is no region, slot or place. */
struct vgpu_usage_time;
struct vgpu_usage_flight;
struct vgpu_usage_visit;
struct usage_time {
	struct vgpu_usage_time *time;
	struct vgpu_usage_visit *visit;
	struct vgpu_usage_flight *flights; /* of all slots */
	uint32_t slot;
};
bool usage_time(const uint8_t uuid[16], struct usage_time *place);

/* Slots at this index and above were never used. */
uint32_t usage_slots(void);

/* Another card of this container: the one at `index`; NULL: no card has that place. */
struct vgpu_usage_time *usage_time_at(int index, const struct vgpu_usage_flight **flights);

/* Takes back what dead processes held: system calls for each slot. */
void usage_reap(void);

/*
 * What live processes hold, with `unbooked` bytes that are known beside, or what the host's figure has beyond bookings.
 * Makes no region: without one, nobody holds anything. False: it cannot be read.
 */
bool usage_held(const uint8_t uuid[16], uint64_t unbooked, uint64_t overhead, uint64_t *held);

#endif

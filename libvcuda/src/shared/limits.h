/*
 * The limits that the host sets for this container. The mounted limits file is their only source.
 *
 * Belongs here: the file's state and its entries. Without the file, nothing is limited. With a broken one (unreadable,
 * or of another size, magic or version) CUDA is refused, see hooks/memory.c. If a later update of a valid file is cut
 * short, the last valid content stays in force. Not here: whose limits a device has (shared/device_limits.h).
 */
#ifndef VCUDA_LIMITS_H
#define VCUDA_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

enum limits_state { LIMITS_ABSENT, LIMITS_PRESENT, LIMITS_BROKEN };

/* Every launch reads this, so its readers are inline. Only shared/limits.c writes it. */
extern struct limits_known {
	bool loaded;
	enum limits_state state;
	const uint64_t *sequence;
} limits_known;

enum limits_state limits_load(void);

static inline enum limits_state limits_state(void)
{
	return __atomic_load_n(&limits_known.loaded, __ATOMIC_ACQUIRE) ? limits_known.state : limits_load();
}

struct card_limits {
	uint64_t memory;    /* bytes that the container may hold of the card */
	uint64_t overhead;  /* bytes that the driver holds beside that, lately measured by the host; 0: unknown */
	bool oversubscribe; /* when the card is full, allocations may lie in managed memory */
	uint32_t cores;      /* percent of the card's time that is the container's share */
	uint32_t core_limit; /* percent that the container may use while no other container wants the time */
};

/* A number that changes with every update of the file. Costs one load. Only for LIMITS_PRESENT. */
static inline uint64_t limits_sequence(void)
{
	return __atomic_load_n(limits_known.sequence, __ATOMIC_ACQUIRE);
}

/* Whether the file lists a card whose time is limited. */
bool limits_have_cores(void);

/* Lists the cards whose time is limited, at most `room`. Returns their number. */
unsigned int limits_list(uint8_t uuids[][16], unsigned int room);

/* The card's present limits. False: the file does not list the card, so it has none. */
bool limits_of(const uint8_t uuid[16], struct card_limits *limits);

#endif

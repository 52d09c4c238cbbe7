/*
 * What the host allows this container, from the mounted limits file and nowhere else.
 *
 * Absent: nothing is limited. Broken (unreadable, another size, magic or version): refused as a whole, see hooks/memory.c.
 * A file that was good once stays in force as it was last read, should a later change of it be cut short.
 */
#ifndef VCUDA_LIMITS_FILE_H
#define VCUDA_LIMITS_FILE_H

#include <stdbool.h>
#include <stdint.h>

enum limits_state { LIMITS_ABSENT, LIMITS_PRESENT, LIMITS_BROKEN };

/* What every launch asks: inline, for shared/limits_file.c alone to write. */
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
	uint64_t overhead;  /* what the driver holds for the container beside that, as the host saw lately; 0: unknown */
	bool oversubscribe; /* allocations may lie in managed memory when the card is full */
	uint32_t cores;      /* percent of the card's time that is the container's */
	uint32_t core_limit; /* percent that it may have while nobody else wants it */
};

/* Changes with every change of the file: one load. Only while limits are present. */
static inline uint64_t limits_sequence(void)
{
	return __atomic_load_n(limits_known.sequence, __ATOMIC_ACQUIRE);
}

/* Whether a card is listed whose time is limited. */
bool limits_have_cores(void);

/* The listed cards whose time is limited, at most `room`; their number. */
unsigned int limits_list(uint8_t uuids[][16], unsigned int room);

/* The card's limits now; false: the card is not listed, so it has none. */
bool limits_of(const uint8_t uuid[16], struct card_limits *limits);

#endif

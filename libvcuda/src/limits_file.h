/*
 * What the host allows this container, from the mounted limits file and nowhere else.
 *
 * Absent: nothing is limited. Broken (unreadable, another size, magic or version): refused as a whole, see hooks_cuda.c.
 * A file that was good once stays in force as it was last read, should a later change of it be cut short.
 */
#ifndef VCUDA_LIMITS_FILE_H
#define VCUDA_LIMITS_FILE_H

#include <stdbool.h>
#include <stdint.h>

enum limits_state { LIMITS_ABSENT, LIMITS_PRESENT, LIMITS_BROKEN };

enum limits_state limits_state(void);

/* The bytes that the container may hold of the card now; false: the card is not listed, so it has no limit. */
bool limits_memory(const uint8_t uuid[16], uint64_t *memory);

#endif

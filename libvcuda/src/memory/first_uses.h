/*
 * Which functions this process has launched: the driver may load a function's code at its first launch (lazy loading).
 *
 * Belongs here: a table that a launch looks into with one load. Two functions may share a place, so a function may seem
 * new more than once. Not here: what follows (memory/context_overhead.h).
 */
#ifndef VCUDA_FIRST_USES_H
#define VCUDA_FIRST_USES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FIRST_USES_BITS = 12 };

extern _Atomic uint64_t first_uses[1 << FIRST_USES_BITS];

static inline _Atomic uint64_t *first_uses_place(const void *function)
{
	return &first_uses[(uint64_t)(uintptr_t)function * 0x9e3779b97f4a7c15u >> (64 - FIRST_USES_BITS)];
}

static inline bool first_uses_is_new(const void *function)
{
	return atomic_load_explicit(first_uses_place(function), memory_order_relaxed) != (uint64_t)(uintptr_t)function;
}

/* The function was launched; or the driver has given out its address, which another one may have had before. */
void first_uses_note(const void *function);
void first_uses_forget(const void *function);

#endif

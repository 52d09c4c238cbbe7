/* Implements memory/first_uses.h. */
#include "memory/first_uses.h"

_Atomic uint64_t first_uses[1 << FIRST_USES_BITS] __attribute__((aligned(64)));

void first_uses_note(const void *function)
{
	atomic_store(first_uses_place(function), (uint64_t)(uintptr_t)function);
}

void first_uses_forget(const void *function)
{
	uint64_t known = (uint64_t)(uintptr_t)function;

	(void)atomic_compare_exchange_strong(first_uses_place(function), &known, 0);
}

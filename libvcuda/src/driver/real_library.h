/*
 * The real library behind this one: libcuda.so.1 or libnvidia-ml.so.1. The loader has loaded it before libvcuda, as
 * libvcuda's dependency.
 *
 * Belongs here: its symbols, and calls of its functions. The macros use the table that driver/cuda_table.h or
 * driver/nvml_table.h names as REAL_TABLE. Not which functions there are (those two headers), nor the functions that
 * pass through unchanged (driver/trampolines.h).
 */
#ifndef VCUDA_REAL_LIBRARY_H
#define VCUDA_REAL_LIBRARY_H

#include "driver/trampolines.h"

/* Returns the real library's symbol, or NULL. */
void *real_library_symbol(const char *name);

/* Finds the function at its first call and keeps it in *member: a process pays only for the functions that it uses. */
void *real_library_find(void *member, const char *name);

#define REAL_ADDRESS(symbol) \
	({ \
		void *address_ = (void *)__atomic_load_n(&REAL_TABLE.symbol, __ATOMIC_RELAXED); \
		address_ ? address_ : real_library_find(&REAL_TABLE.symbol, #symbol); \
	})

/* Calls the real function. If this driver lacks it, the result is the API's error for that. */
#define REAL(symbol, ...) (((__typeof__(symbol) *)REAL_ADDRESS(symbol))(__VA_ARGS__))

/* Whether this driver has the function. */
#define REAL_HAS(symbol) (REAL_ADDRESS(symbol) != (void *)trampolines_no_such_function)

#define EXPORT __attribute__((visibility("default")))

#endif

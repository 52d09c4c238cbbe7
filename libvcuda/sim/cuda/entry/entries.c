/*
 * Expands cuda/entry/entries.def: the exported variants of each function, and the table that cuGetProcAddress searches
 * (cuda/entry/proc_address.c). The functions are in the other files.
 */
#include "cuda/entry/entries.h"
#include "state/trampoline.h"

#define STREAMS(base, since, symbol, thread_since, argument) \
	ENTRY(base, since, symbol) STREAM(base, thread_since, symbol##_ptsz, symbol, argument)
#define THREADS(base, since, symbol, thread_since, suffix) \
	ENTRY(base, since, symbol) THREAD(base, thread_since, symbol##suffix, symbol)

/* Only the addresses matter. No prototype is included, so that the list can declare all functions itself. */
#define DECLARE(symbol) extern void symbol(void);
#define ENTRY(base, since, symbol) DECLARE(symbol)
#define OLD(base, since, symbol, target) DECLARE(symbol)
#define THREAD(base, since, symbol, target) DECLARE(symbol)
#define STREAM(base, since, symbol, target, argument) DECLARE(symbol)
#define THREAD_ENTRY(base, since, symbol) DECLARE(symbol)
#define ACCEPTED(base, since, symbol) DECLARE(symbol)
#define ALIAS(base, since, symbol)
#include "cuda/entry/entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef STREAM
#undef THREAD_ENTRY
#undef ACCEPTED
#undef ALIAS

#define ENTRY(base, since, symbol)
#define OLD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define THREAD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define STREAM(base, since, symbol, target, argument) SIM_STREAM_TRAMPOLINE(symbol, target, argument)
#define THREAD_ENTRY(base, since, symbol)
#define ACCEPTED(base, since, symbol) SIM_TRAMPOLINE(symbol, sim_absent_accepted)
#define ALIAS(base, since, symbol)
#include "cuda/entry/entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef STREAM
#undef THREAD_ENTRY
#undef ACCEPTED
#undef ALIAS

/* True for the name of a variant for the per-thread default stream. */
#define SIM_IS_THREAD(name) (sizeof(name) > 6 && name[sizeof(name) - 6] == '_' && name[sizeof(name) - 5] == 'p')

const struct sim_entry sim_entries[] = {
#define ENTRY(base, since, symbol) {#base, since, false, symbol},
#define OLD(base, since, symbol, target) {#base, since, false, symbol},
#define THREAD(base, since, symbol, target) {#base, since, true, symbol},
#define STREAM(base, since, symbol, target, argument) {#base, since, true, symbol},
#define THREAD_ENTRY(base, since, symbol) {#base, since, true, symbol},
#define ACCEPTED(base, since, symbol) {#base, since, SIM_IS_THREAD(#symbol), symbol},
#define ALIAS(base, since, symbol) {#base, since, false, symbol},
#include "cuda/entry/entries.def"
};

const size_t sim_entry_count = sizeof sim_entries / sizeof *sim_entries;

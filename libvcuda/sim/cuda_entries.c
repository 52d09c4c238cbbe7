#include "cuda_entries.h"
#include "trampoline.h"

/* Only the address matters here: no prototype is included, so that the one list can declare them all. */
#define ENTRY(base, since, symbol) extern void symbol(void);
#define OLD(base, since, symbol, target) extern void symbol(void);
#define THREAD(base, since, symbol, target) extern void symbol(void);
#define ALIAS(base, since, symbol)
#include "cuda_entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef ALIAS

#define ENTRY(base, since, symbol)
#define OLD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define THREAD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define ALIAS(base, since, symbol)
#include "cuda_entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef ALIAS

const struct sim_entry sim_entries[] = {
#define ENTRY(base, since, symbol) {#base, since, false, symbol},
#define OLD(base, since, symbol, target) {#base, since, false, symbol},
#define THREAD(base, since, symbol, target) {#base, since, true, symbol},
#define ALIAS(base, since, symbol) {#base, since, false, symbol},
#include "cuda_entries.def"
};

const size_t sim_entry_count = sizeof sim_entries / sizeof *sim_entries;

#include "cuda_entries.h"
#include "trampoline.h"

/* Only the address matters here: no prototype is included, so that the one list can declare them all. */
#define ENTRY(base, since, symbol) extern void symbol(void);
#define OLD(base, since, symbol, target) extern void symbol(void);
#define THREAD(base, since, symbol, target) extern void symbol(void);
#define ABSENT(base, since, symbol) extern void symbol(void);
#define ALIAS(base, since, symbol)
#include "cuda_entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef ABSENT
#undef ALIAS

#define ENTRY(base, since, symbol)
#define OLD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define THREAD(base, since, symbol, target) SIM_TRAMPOLINE(symbol, target)
#define ABSENT(base, since, symbol) SIM_TRAMPOLINE(symbol, sim_absent)
#define ALIAS(base, since, symbol)
#include "cuda_entries.def"
#undef ENTRY
#undef OLD
#undef THREAD
#undef ABSENT
#undef ALIAS

/* Of a name that ends so, the variant for the per-thread default stream. */
#define SIM_IS_THREAD(name) (sizeof(name) > 6 && name[sizeof(name) - 6] == '_' && name[sizeof(name) - 5] == 'p')

const struct sim_entry sim_entries[] = {
#define ENTRY(base, since, symbol) {#base, since, false, symbol},
#define OLD(base, since, symbol, target) {#base, since, false, symbol},
#define THREAD(base, since, symbol, target) {#base, since, true, symbol},
#define ABSENT(base, since, symbol) {#base, since, SIM_IS_THREAD(#symbol), symbol},
#define ALIAS(base, since, symbol) {#base, since, false, symbol},
#include "cuda_entries.def"
};

const size_t sim_entry_count = sizeof sim_entries / sizeof *sim_entries;

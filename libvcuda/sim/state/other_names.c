/*
 * The names that a driver version exports and the simulator does not implement. The build compiles this file for each
 * version in SIM_DRIVERS, with the names in other_names.def. All names of the version are there: a weak definition
 * gives way to the simulator's own. Functions jump to SIM_ABSENT; data is a word of zeros.
 */
#include "state/other_names.h"
#include "state/trampoline.h"

#define SIM_SINCE_none 999999 /* newer than all releases */

#define FUNCTION(name, release) SIM_WEAK_TRAMPOLINE(name, SIM_ABSENT)
#define OBJECT(name) __attribute__((weak, visibility("default"))) long name;
#include "other_names.def"
#undef FUNCTION
#undef OBJECT

/* Only the addresses matter. */
#define OBJECT(name)
#define FUNCTION(name, release) extern void name(void);
#include "other_names.def"
#undef FUNCTION

const struct sim_other_name sim_other_names[] = {
#define FUNCTION(name, release) {#name, SIM_SINCE_##release, name},
#include "other_names.def"
};

const size_t sim_other_name_count = sizeof sim_other_names / sizeof *sim_other_names;

/*
 * The names that a driver version exports and the simulator does not implement. The build compiles this file for each
 * version in SIM_DRIVERS, with the names in other_names.def. All names of the version are there: a weak definition gives
 * way to the simulator's own. Functions jump to SIM_ABSENT; data is a word of zeros.
 */
#include "state/trampoline.h"

#define FUNCTION(name) SIM_WEAK_TRAMPOLINE(name, SIM_ABSENT)
#define OBJECT(name) __attribute__((weak, visibility("default"))) long name;
#include "other_names.def"

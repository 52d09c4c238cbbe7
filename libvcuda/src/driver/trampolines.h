/*
 * Jumps to the real functions that libvcuda does not hook and yet exports by name, so that `gcc -lcuda` in a
 * container links against libvcuda. The names are those known at build (the lists in names/). Each has one
 * `TRAMPOLINE(name)` in the generated trampolines.def.
 *
 * A jump finds its function in the real library at its first call. If this driver lacks the function, the jump returns
 * the API's error for that. dlsym finds the name nevertheless, while cuGetProcAddress does not, as it calls the driver.
 *
 * Belongs here: functions that pass through unchanged. Not the hooked functions (driver/cuda_table.h).
 */
#ifndef VCUDA_TRAMPOLINES_H
#define VCUDA_TRAMPOLINES_H

/* The target of each jump whose function the driver lacks. */
int trampolines_no_such_function(void);

#endif

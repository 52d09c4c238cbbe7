/*
 * Handing over to vgpu.hook.main in Python: the state that was read becomes stdin again, and of the caller nothing
 * else gets through, neither environment nor open files, umask, signal mask, ignored signals or working directory.
 */
#ifndef VGPU_GATE_INTERPRETER_H
#define VGPU_GATE_INTERPRETER_H

#include "input.h"

/* Opens those of descriptors 0, 1 and 2 that are closed as /dev/null, so that no file of ours becomes one of them. */
void standard_fds(void);

/* `args` (at most 8, then NULL) is entry()'s argument in vgpu.hook.main. Returns only on failure: the step, with errno. */
const char *interpreter_exec(const struct input *state, char *const *args);

#endif

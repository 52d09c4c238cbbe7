/*
 * The exec of vgpu.hook.main in Python.
 *
 * Belongs here: what the interpreter inherits. The state that was read becomes its stdin. It inherits nothing else
 * from the caller: no environment, open files, umask, signal mask, ignored signals or working directory.
 */
#ifndef VGPU_GATE_INTERPRETER_H
#define VGPU_GATE_INTERPRETER_H

#include "input.h"

/* Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed, so that no file of ours gets that number. */
void interpreter_standard_fds(void);

#define INTERPRETER_ARGS_MAX 24

/* What an administrator does when Python cannot be started. */
#ifdef VGPU_RELEASE
#include "release.h"
#define INTERPRETER_AGAIN RELEASE_AGAIN
#else
#define INTERPRETER_AGAIN "install vgpu and python3 again"
#endif

/*
 * `args` (at most INTERPRETER_ARGS_MAX, then NULL) are the arguments of entry() in vgpu.hook.main. Returns only on
 * failure: the step that failed, with errno.
 */
const char *interpreter_exec(const struct input *state, char *const *args);

#endif

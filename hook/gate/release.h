/*
 * A release: a directory with the files of one version of vgpu, this program at usr/bin/vgpu-gate among them, and with
 * a Python, its loader and its C library. The host needs neither. Only builds with VGPU_RELEASE have this.
 *
 * Belongs here: the release's root, the command line that starts its Python, and the programs of the release that are
 * written in Python. They are links to this program. The root comes from /proc/self/exe, in which the kernel has
 * resolved all links. So a process stays in one release while a link such as `current` is turned to another one.
 */
#ifndef VGPU_GATE_RELEASE_H
#define VGPU_GATE_RELEASE_H

#include <stdbool.h>
#include <stddef.h>

#define RELEASE_AGAIN "install this release of vgpu again: delete the pod of vgpu-node on this node"

#define RELEASE_PYTHON_WORDS 6

/*
 * Writes the RELEASE_PYTHON_WORDS words that start Python to `words`; words[0] is the file to execute. Returns NULL, or
 * on failure the step that failed, with errno. The strings stay valid.
 */
const char *release_python(char **words);

/* The root without a slash at its end, so "" for /. release_python() has succeeded. */
char *release_root(void);

/* Whether a program of the release has this name. */
bool release_has_program(const char *name);

/* Executes it with the caller's arguments, environment and open files. Returns only on failure: the exit status. */
int release_program(const char *name, int argc, char **argv);

#endif

/*
 * Bounded reading of what others wrote: the state on stdin and a bundle's config.json. Both are read into memory of our
 * own; a mapping of the file would be SIGBUS once somebody truncates it, and offsets found in it could go stale.
 */
#ifndef VGPU_GATE_INPUT_H
#define VGPU_GATE_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#define STATE_MAX ((size_t)1 << 20)
#define CONFIG_MAX ((size_t)64 << 20)

struct input {
    const char *at;
    size_t len;
    bool oversized; /* `len` bytes are the beginning of something longer */
};

/* 0 or an errno. */
int input_read_stdin(struct input *input);

/* 0 or an errno; EINVAL is something else than a regular file, ELOOP with O_NOFOLLOW in `flags` a symlink. */
int input_read_file(int dir, const char *path, int flags, struct input *input, struct stat *st);

#endif

/*
 * Bounded reading of untrusted input: the state on stdin and a bundle's config.json.
 *
 * Belongs here: reading both into memory of this process. A mapping of the file would cause SIGBUS if somebody
 * truncated the file, and offsets found in it could become wrong. What the input means is decided elsewhere.
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
    bool oversized; /* the input is longer than `len` bytes */
};

/* 0 or an errno. */
int input_read_stdin(struct input *input);

/* 0 or an errno. EINVAL: not a regular file. ELOOP: a symlink, with O_NOFOLLOW in `flags`. */
int input_read_file(int dir, const char *path, int flags, struct input *input, struct stat *st);

#endif

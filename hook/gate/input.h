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

/* The same numbers as in vgpu.hook.request.oci_state; a test compares them. */
#define STATE_MAX_MIB 1
#define CONFIG_MAX_MIB 16
#define STATE_MAX ((size_t)STATE_MAX_MIB << 20)
#define CONFIG_MAX ((size_t)CONFIG_MAX_MIB << 20)
#define INPUT_TEXT(number) INPUT_QUOTED(number)
#define INPUT_QUOTED(number) #number

struct input {
	const char *at;
	size_t len;
	bool oversized; /* the input is longer than `len` bytes */
};

/*
 * 0 or an errno, with what was read until then. ETIMEDOUT: the writer did not close its end within VGPU_STDIN_SECONDS.
 */
int input_read_stdin(struct input *input);

/* CLOCK_MONOTONIC. */
long input_milliseconds(void);

/* 0 or an errno. EINVAL: not a regular file. ELOOP: a symlink, with O_NOFOLLOW in `flags`. */
int input_read_file(int dir, const char *path, int flags, struct input *input, struct stat *st);

#endif

/*
 * The hooks of an OCI config.json: where they stand in its text, and the insertions that add vgpu-hook to prestart and
 * poststop. Pure: text in, insertions out; everything that is not ours stays byte for byte as it was.
 *
 * Order. In prestart ours comes last: NVIDIA's runtime hook, if it is there too, mounts the real libcuda over the same
 * names and rebuilds the loader's cache, and what is mounted later is what the container sees. In poststop ours comes
 * first: runc stops at the first hook that fails, and a claim that nobody releases waits for the reaper.
 */
#ifndef VGPU_GATE_SPEC_HOOKS_H
#define VGPU_GATE_SPEC_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include "input.h"

struct spec_edit {
    size_t offset, drop; /* `drop` bytes from `offset` on are replaced */
    const char *text;
    size_t len;
};

struct spec_edits {
    struct spec_edit edit[3]; /* by ascending offset */
    size_t count;             /* 0: vgpu-hook is there already */
    const char *why;          /* what makes it impossible, NULL if nothing does */
};

/*
 * `hook` is vgpu-hook's absolute path, `config` goes into its arguments as --config and may be NULL. The document must
 * have passed marks_of_config(). The edits' texts stay valid until the next call.
 */
struct spec_edits spec_hooks_add(const struct input *document, const char *hook, const char *config);

#endif

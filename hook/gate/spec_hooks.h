/*
 * The hooks in the text of an OCI config.json, and the insertions that add vgpu-hook to prestart and poststop.
 *
 * Belongs here: a pure function from the text to the insertions. All other text stays byte for byte the same. bundle.h
 * reads and writes the file.
 *
 * Order. In prestart, vgpu-hook comes last: NVIDIA's runtime hook, if present, mounts the real libcuda over the same
 * names and rebuilds the loader's cache, and the container sees what was mounted last. In poststop, vgpu-hook comes
 * first: runc stops at the first hook that fails, and a claim that was not released waits for the reaper.
 */
#ifndef VGPU_GATE_SPEC_HOOKS_H
#define VGPU_GATE_SPEC_HOOKS_H

#include <stdbool.h>
#include <stddef.h>

#include "input.h"
#include "shim_args.h"

/* --config, --standalone and each --annotation, with their values */
#define SPEC_HOOK_WORDS_MAX (4 + 2 * SHIM_ANNOTATIONS_MAX)

struct spec_edit {
	size_t offset, drop; /* the text replaces `drop` bytes from `offset` on */
	const char *text;
	size_t len;
};

struct spec_edits {
	struct spec_edit edit[3]; /* by ascending offset */
	size_t count;             /* 0: vgpu-hook is present already */
	const char *why;          /* what makes the insertion impossible; NULL if nothing does */
};

/* vgpu-hook's absolute path, and the arguments before the stage. */
struct spec_hook {
	const char *path;
	const char *words[SPEC_HOOK_WORDS_MAX];
	size_t count;
};

/*
 * marker_of_config() must have accepted the document. The texts of the edits stay valid until the next call.
 */
struct spec_edits spec_hooks_add(const struct input *document, const struct spec_hook *hook);

#endif

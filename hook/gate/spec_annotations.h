/*
 * The annotations in the text of an OCI config.json, and the insertion that adds some of vgpu's.
 *
 * Belongs here: a pure function from the text to the insertion. An annotation that the container has already stays. All
 * other text stays byte for byte the same. bundle.h reads and writes the file.
 */
#ifndef VGPU_GATE_SPEC_ANNOTATIONS_H
#define VGPU_GATE_SPEC_ANNOTATIONS_H

#include <stddef.h>

#include "input.h"
#include "shim_args.h"
#include "spec_hooks.h"

/*
 * `annotations` are KEY=VALUE of characters that need no escape, as shim_args_read() checks. marker_of_config() must have
 * accepted the document. The text of the edit stays valid until the next call.
 */
struct spec_edits spec_annotations_add(const struct input *document, const char *const *annotations, size_t count);

#endif

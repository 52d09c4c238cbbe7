/*
 * What makes a container one of ours: an annotation vgpu.io/..., or an environment entry VGPU_GRANT_... for runtimes
 * that drop annotations; and what makes it a pod's sandbox, which never gets a card. A marker is only a reason to look
 * closer: what it is worth is decided by vgpu.hook.
 */
#ifndef VGPU_GATE_MARKER_H
#define VGPU_GATE_MARKER_H

#include <limits.h>
#include <stdbool.h>

#include "input.h"

struct marks {
    bool vgpu;
    bool sandbox;
    char why[96];          /* what is wrong with the document; empty as long as nothing is */
    char bundle[PATH_MAX]; /* of a state */
};

/* Both answer whether the document is whole; if not, the marks seen up to there count for nothing. */
bool marks_of_state(const struct input *input, struct marks *marks);
bool marks_of_config(const struct input *input, struct marks *marks);

/* For a document that cannot be parsed: whether a marker's text occurs anywhere in it. */
bool marks_raw(const struct input *input);

#endif

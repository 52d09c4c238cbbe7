/*
 * The markers of a container. An annotation vgpu.io/... or, for runtimes that drop annotations, an environment entry
 * VGPU_GRANT_... marks a container that asks for a share of a card. A container-type annotation marks a pod's sandbox,
 * which never gets a card. An image or a tenant can forge that one, so it counts only where nothing names an amount.
 *
 * Belongs here: finding markers in the hook's state and in config.json. A marker is only a reason to look closer:
 * vgpu.hook decides whether the container may have what it asks for.
 */
#ifndef VGPU_GATE_MARKER_H
#define VGPU_GATE_MARKER_H

#include <limits.h>
#include <stdbool.h>

#include "input.h"

struct marks {
	bool vgpu;
	bool amount;           /* a grant, a request or an amount is among them */
	bool sandbox;
	char why[96];          /* what is wrong with the document; empty if nothing is */
	char bundle[PATH_MAX]; /* the bundle's path, for a state only */
};

/* Whether the container is a pod's sandbox, by what two documents say of it. Either may be NULL. */
bool marker_is_sandbox(const struct marks *one, const struct marks *other);

/* Both return whether the document is complete and valid. If not, the caller must ignore the marks found so far. */
bool marker_of_state(const struct input *input, struct marks *marks);
bool marker_of_config(const struct input *input, struct marks *marks);

/* Whether the text of a marker occurs anywhere in a document that cannot be parsed. */
bool marker_is_anywhere(const struct input *input);

#endif

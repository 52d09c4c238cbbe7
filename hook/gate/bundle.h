/*
 * A bundle's config.json as the shim meets it: read, judged, and, where the container carries a marker, replaced by one
 * with vgpu-hook in it, atomically, with its mode and owner. A config.json that is a symlink is never followed for
 * writing: a bundle in other hands than root's could aim it anywhere.
 */
#ifndef VGPU_GATE_BUNDLE_H
#define VGPU_GATE_BUNDLE_H

#include <stdbool.h>

#include "shim_args.h"

/* False where the container has a marker and cannot have its hooks; the line has been printed. */
bool bundle_add_hooks(const struct shim_args *args);

#endif

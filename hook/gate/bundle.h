/*
 * The shim's change to a bundle's config.json. If the container has a marker, or the shim's command line a share for all
 * containers, the file is atomically replaced by one that has vgpu-hook in it and the same mode and owner.
 *
 * Belongs here: reading, checking and replacing the file. The insertions come from spec_hooks.h. Writing never follows
 * a config.json that is a symlink: in a bundle that others than root can change, it could point anywhere.
 */
#ifndef VGPU_GATE_BUNDLE_H
#define VGPU_GATE_BUNDLE_H

#include <stdbool.h>

#include "shim_args.h"

/* False: the container has a marker, but the hooks could not be added. The message has been printed. */
bool bundle_add_hooks(const struct shim_args *args);

#endif

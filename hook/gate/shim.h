/*
 * vgpu-runtime: an OCI runtime that behaves like the real one, except for create and run of a container with a marker:
 * for these it adds vgpu-hook to config.json first.
 *
 * Belongs here: finding the real runtime and replacing this process by it with exec. The real runtime gets the
 * environment and the arguments unchanged, without the shim's own options (--vgpu-...). The change to config.json
 * is in bundle.h.
 */
#ifndef VGPU_GATE_SHIM_H
#define VGPU_GATE_SHIM_H

/* `name` is the real runtime's name, from vgpu-runtime-<name>. NULL: runc or, if there is no runc, crun. */
int shim_main(const char *name, int argc, char **argv);

#endif

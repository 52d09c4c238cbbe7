/*
 * vgpu-runtime: an OCI runtime that is another one in every respect, except that create and run of a container with a
 * marker add vgpu-hook to its config.json first. It stays no longer than until exec and hands on arguments and
 * environment as they came; its own options (--vgpu-runtime, --vgpu-config) alone are taken out.
 */
#ifndef VGPU_GATE_SHIM_H
#define VGPU_GATE_SHIM_H

/* `name` is the real runtime's, from vgpu-runtime-<name>; NULL for the first of runc and crun that is there. */
int shim_main(const char *name, int argc, char **argv);

#endif

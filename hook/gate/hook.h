/*
 * vgpu-hook: the OCI hook's entry. A container without a marker leaves here, whatever state Python, the configuration
 * or vgpu are in, and is never failed; one with a marker goes to vgpu.hook.main, or is refused in one line where that
 * cannot be.
 */
#ifndef VGPU_GATE_HOOK_H
#define VGPU_GATE_HOOK_H

int hook_main(int argc, char **argv);

#endif

/*
 * vgpu-hook: the OCI hook's entry.
 *
 * Belongs here: the decision whether Python runs. For a container without a marker the hook ends here with success,
 * even if Python, the configuration or vgpu is broken. A container with a marker is passed on to vgpu.hook.main; if
 * that is impossible, the hook refuses it with a message of one line.
 */
#ifndef VGPU_GATE_HOOK_H
#define VGPU_GATE_HOOK_H

int hook_main(int argc, char **argv);

#endif

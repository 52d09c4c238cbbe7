"""The step that opens the container's device cgroup: cgroup v1 lists, cgroup v2 programs, systemd's own list.

Belongs here: the rules of a container, how they are written, and the check that the kernel obeys them. Not here: device
nodes, which are part of the plan (vgpu.hook.inject).
"""

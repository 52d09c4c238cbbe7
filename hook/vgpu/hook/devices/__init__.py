"""The step that opens the container's device cgroup: cgroup v1 lists, cgroup v2 programs, systemd's own list.

Belongs here: which rules a container has, how they are written, and the check that the kernel obeys them.
"""

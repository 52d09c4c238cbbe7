"""The step that equips the container: inspect its root, plan the files, links and mounts, execute the plan.

Belongs here: everything that the hook puts into the container's file system. Not here: the device cgroup
(vgpu.hook.devices).
"""

"""The step that equips the container: inspect its root, plan the files, links and mounts, execute the plan.

Belongs here: everything that is put into the container's file system. The device cgroup is vgpu.hook.devices'.
"""

"""vgpuctl: one module for each verb, which exports a click object of the same name.

Belongs here: arguments, checks of arguments, tables and exit statuses. Does not belong here: what the verbs show or
change, which is in vgpu.config, vgpu.hook and the rest of vgpu.node. vgpuctl is an ordinary program and never runs in
the hook's process, so its modules may use third-party packages.
"""

"""The node's programs beside the hook: vgpud, vgpuctl, the doctor and the inventory of the driver.

Belongs here: the node's code that never runs in the hook's process. It may therefore use third-party packages.
Does not belong here: the hook (vgpu.hook) and the device plugin (vgpu.plugin). Of this package, vgpu.plugin uses
only `service` and `driver`.
"""

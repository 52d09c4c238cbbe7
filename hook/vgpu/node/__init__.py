"""The node's programs beside the hook: vgpud, vgpuctl, the doctor and the inventory of the driver.

Belongs here: everything of a node that never runs in the hook's process, so libraries may be used. vgpu.plugin
uses `service` and `driver` of it, and nothing else.
"""

"""What the node's long-running programs share: log, readiness, single instance, and the resources for kubelet.

Belongs here: code that vgpud, vgpuctl and the device plugin have in common. Does not belong here: code of one program.
The hook's process loads nothing of this package.
"""

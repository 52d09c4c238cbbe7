"""What the node's long-running programs share: log, readiness, single instance, the resources for kubelet.

Belongs here: what vgpud and the device plugin both use. The hook's process loads nothing of it.
"""

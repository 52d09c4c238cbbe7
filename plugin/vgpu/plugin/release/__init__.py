"""A release of vgpu on a host that has no package: the DaemonSet vgpu-node installs it from its image, and removes it.

Belongs here: the program vgpu-release, which the DaemonSet's containers run. Does not belong here: what is in a release
(packaging/image), and the objects of the DaemonSet (packaging/kubernetes).
"""

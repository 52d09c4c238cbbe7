"""The inventory of the node's driver: cards by NVML, libraries, device nodes, and functions that libvcuda lacks.

Belongs here: looking at the host's driver. Does not belong here: when an inventory is taken, which vgpud and vgpuctl
decide. The hook loads nothing of this package; it reads the inventory that vgpud or vgpuctl has written.
"""

"""The inventory of the node's driver: cards by NVML, libraries, device nodes, functions unknown to libvcuda.

Belongs here: looking at the host's driver. Programs load it, the hook reads the inventory that it writes.
"""

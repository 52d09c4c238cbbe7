"""The OCI hook: what runs at the start and stop of a container, and what the node's other programs share with it.

Belongs here: the modules that the hook's process loads, and the steps of a start, one folder each. Not here: the
daemon, vgpuctl and the driver inventory, which are vgpu.node's. The hook's process (``main`` and below) uses the
standard library only and has one thread: it runs as root, beside a container that may be hostile.
"""

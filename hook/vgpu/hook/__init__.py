"""The node: OCI hook, driver inventory, ledger, placement and vgpuctl.

The modules that the hook's process imports (``main`` and below) are standard library only and single-threaded:
they run as root, once per container start, beside a container that may be hostile.
"""

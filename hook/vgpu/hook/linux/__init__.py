"""The kernel's interfaces, one module each: system calls, BPF, procfs, cgroups, a container's root, D-Bus.

Belongs here: what the kernel offers and how it is called. Nothing here decides what a container gets.
"""

"""The kernel's interfaces, one module each: system calls, BPF, procfs, cgroups, a container's root, D-Bus.

Belongs here: the interfaces and their calls. Not here: any decision about what a container gets.
"""

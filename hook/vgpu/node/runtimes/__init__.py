"""The registration of the hook and the shim in the configuration of container runtimes, and its undo.

Belongs here: what each runtime needs in which file, the edits, the backups and the proof by a container. Does not
belong here: the verb `vgpuctl runtime`, which is in vgpu.node.ctl.runtime. Only root can write these files.
"""

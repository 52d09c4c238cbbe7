"""The checks of `vgpuctl doctor`: one function for each check, from a `CheckContext` to findings.

Belongs here: checks of a node, which change nothing, and in `repairs` what `--fix` changes. The context contains all
roots, so a test can pass a fixture tree instead of a node. Does not belong here: the order of the checks and their
table (vgpu.node.ctl.doctor).
"""

"""vgpuctl: one module per verb, each exporting a click object of its own name.

Runs as an ordinary program, never inside the hook's process, so third-party packages are fine here.
"""

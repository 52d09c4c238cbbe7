"""What `vgpuctl doctor` looks at: one function per check, each from a `CheckContext` to findings. No check changes a node.

All roots are the context's, so that fixture trees stand for nodes.
"""

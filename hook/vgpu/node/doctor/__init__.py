"""What `vgpuctl doctor` looks at: one function per check, each from a `Subject` to findings. No check changes a node.

All roots are the subject's, so that fixture trees stand for nodes.
"""

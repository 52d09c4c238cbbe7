"""The self-test of a node: what vgpu promises, measured on this node's own card, and what the card does.

Belongs here: running the measuring program (libvcuda/selftest) under limits, the rows of the report, and the report.
Does not belong here: the verb's options (vgpu.node.ctl.selftest), and the program itself.
"""

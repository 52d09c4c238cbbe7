"""The scheduler extender: chooses nodes and cards for kube-scheduler, keeps quotas, and binds pods.

Belongs here: the process vgpu-scheduler-extender, from kube-scheduler's requests to the decision and its writing. It
runs in the cluster, not on the nodes with cards, and loads libraries that the node's own programs do not have (the
extra `scheduler`). The choice of cards on a node is vgpu.hook.placement's `place`, the function that the node uses.
"""

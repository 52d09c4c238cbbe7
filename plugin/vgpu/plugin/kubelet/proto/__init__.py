"""Kubernetes' protocols (device plugin, pod-resources, DRA, CRI), as .proto, generated messages and their services.

Belongs here: the messages on kubelet's sockets. Their meaning belongs to vgpu.plugin.kubelet. `generate` generates the
`*_pb2.py`, which are committed; `services` makes handlers and clients from their descriptors.
"""

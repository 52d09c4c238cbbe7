"""Access to the API server: this node's pods and its own node object, and nothing else.

Belongs here: the watch that keeps the pods' records for the hook, the answers that schedulers wait for, the node's
registration. The device plugin serves kubelet without any of it: what fails here is told once and tried again. The
`kubernetes` package is imported in the thread that connects, long after registration.
"""

from __future__ import annotations

from vgpu.plugin.apiserver.agent import Cluster

__all__ = ["Cluster"]

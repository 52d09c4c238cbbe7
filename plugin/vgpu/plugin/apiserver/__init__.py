"""Access to the API server: the pods of this node and the node's own object, nothing else.

Belongs here: the watch that keeps the pods' records for the hook, the answers that schedulers wait for, and the node's
register annotations. The device plugin serves kubelet without this package: a failure here is logged once and tried
again. The thread that connects imports the `kubernetes` package, long after registration with kubelet.
"""

from __future__ import annotations

from vgpu.plugin.apiserver.agent import Agent

__all__ = ["Agent"]

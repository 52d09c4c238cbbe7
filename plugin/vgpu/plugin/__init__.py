"""vgpu.plugin: the Kubernetes side. The device plugin that advertises a node's cards and grants shares of them.

May import `vgpu.config` and `vgpu.hook`; nothing imports it. Runs as root, as a systemd unit or a DaemonSet.
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "NONE"
)  # before grpc is loaded: what fails is told by us, once, with its reason

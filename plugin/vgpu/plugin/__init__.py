"""vgpu.plugin: the Kubernetes side. The device plugin advertises a node's cards to kubelet and grants shares of them.

Belongs here: what only the device plugin needs. It may import `vgpu.config`, `vgpu.hook`, and `service` and `driver` of
`vgpu.node`; no other package imports it. It runs as root, as a systemd unit or as a DaemonSet.
"""

from __future__ import annotations

import os

# Before grpc is loaded. The plugin itself logs each failure, once and with its reason.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# The plugin's forked children never call grpc. With fork support, grpc would start threads in each of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

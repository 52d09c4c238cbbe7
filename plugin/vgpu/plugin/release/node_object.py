"""The node's object at the API server, as far as an installation changes it: an event that says why it failed, and the
removal of what the device plugin has written on the node.

Belongs here: those two calls. An installation works without the API server; the reason is in the container's log, too.
"""

from __future__ import annotations

import hashlib
import os
import time

from vgpu.config.dialects import registration
from vgpu.config.errors import VgpuError
from vgpu.plugin.apiserver.client import Api, ApiError, Object

OURS = "vgpu.io/"
REGISTERED = (
    registration.HAMI, registration.HAMI_HANDSHAKE, registration.VOLCANO, registration.VOLCANO_HANDSHAKE,
    registration.TYDIC, registration.TYDIC_HEARTBEAT,
)  # fmt: skip
MAX_MESSAGE = 1000  #: characters, of 1024 that an event may have


def report(reason: str, text: str) -> str:
    """Write an event on the node that NODE_NAME names. Returns why that was not possible; "" if it was."""
    node = os.environ.get("NODE_NAME", "")
    digest = hashlib.sha256(f"{reason}\0{text}\0{int(time.time()) // 3600}".encode()).hexdigest()[:16]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    event: Object = {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": text[:MAX_MESSAGE],
        "metadata": {"name": f"{node}.{digest}", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "source": {"component": "vgpu-release", "host": node},
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }  # fmt: skip
    if not node:
        return "NODE_NAME is not set"
    try:
        Api().post("/api/v1/namespaces/default/events", event)
    except (ApiError, VgpuError) as error:
        return "" if isinstance(error, ApiError) and error.kind == "conflict" else str(error)
    return ""


def clear() -> list[str]:
    """Remove the labels and annotations of vgpu from the node. Returns their names. VgpuError if that failed."""
    node = os.environ.get("NODE_NAME", "")
    path = f"/api/v1/nodes/{node}"
    try:
        api = Api()
        metadata = api.get(path).get("metadata")
        found = metadata if isinstance(metadata, dict) else {}
        removed = {
            kind: {name: None for name in found.get(kind) or {} if name.startswith(OURS) or name in REGISTERED}
            for kind in ("labels", "annotations")
        }
        names = [name for part in removed.values() for name in part]
        if names:
            api.patch(path, {"metadata": removed})
    except ApiError as error:
        raise VgpuError(f"node {node}", expected="to remove its labels and annotations", found=str(error)) from error
    return names

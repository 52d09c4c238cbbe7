"""The node's condition VgpuCardsHealthy: whether its cards are well, where cluster operators look for it.

Belongs here: what the condition says, and writing it when it is another one. A write names the node's version, so it
never undoes what kubelet has written beside it. Whether a card is ill is vgpud's word (vgpu.config.health).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.plugin.apiserver.client import Api, Object

TYPE = "VgpuCardsHealthy"
MAX_MESSAGE = 1024  #: characters
TIME = "%Y-%m-%dT%H:%M:%SZ"

Faults = Callable[[], dict[str, str]]


class NodeCondition:
    """`faults` returns card uuid -> card and reason in words, `not_known` why the cards' health is not known, or ""."""

    def __init__(
        self, path: str, faults: Faults, not_known: Callable[[], str], clock: Callable[[], float] = time.time
    ) -> None:
        self.path = f"{path}/status"
        self.faults = faults
        self.not_known = not_known
        self.clock = clock

    def correct(self, api: Api, node: Object) -> None:
        """Write the condition if `node`, as it was read just now, has another one. ApiError.

        A conflict is left to the next time.
        """
        status, metadata = node.get("status"), node.get("metadata")
        listed = status.get("conditions") if isinstance(status, dict) else None
        present = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        old = next((item for item in present if item.get("type") == TYPE), {})
        right = said(self.faults(), self.not_known())
        if all(old.get(key) == value for key, value in right.items()) or not isinstance(metadata, dict):
            return
        now = time.strftime(TIME, time.gmtime(self.clock()))
        since = old.get("lastTransitionTime") if old.get("status") == right["status"] else now
        new = {"type": TYPE, **right, "lastHeartbeatTime": now, "lastTransitionTime": since}
        others = [item for item in present if item.get("type") != TYPE]
        version = metadata.get("resourceVersion")
        api.patch(self.path, {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, new]}})


def said(faults: dict[str, str], not_known: str) -> dict[str, str]:
    """The condition's status, reason and message."""
    if faults:
        text = "; ".join(faults[uuid] for uuid in sorted(faults))
        return {"status": "False", "reason": "CardsIll", "message": text[:MAX_MESSAGE]}
    if not_known:
        return {"status": "Unknown", "reason": "NotKnown", "message": not_known[:MAX_MESSAGE]}
    return {"status": "True", "reason": "CardsHealthy", "message": "no card of this node is ill"}

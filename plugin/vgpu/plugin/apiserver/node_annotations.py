"""The node's own object: its registration for extenders, kept as it should be, and locks on it released.

Belongs here: reading the node, comparing, patching what differs and nothing else. What the annotations look like is
vgpu.config.dialects.registration's, which locks may go vgpu.plugin.apiserver.scheduler_protocols'.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from vgpu.config import inventory as inventories
from vgpu.config import paths
from vgpu.config.dialects import registration
from vgpu.config.dialects.registration import Offer
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.plugin.apiserver import pod_objects, scheduler_protocols
from vgpu.plugin.apiserver.client import Api, Object
from vgpu.plugin.apiserver.pod_objects import Seen
from vgpu.plugin.apiserver.pods import node_path

HEARTBEAT = 30.0
LOOK = 300.0  #: seconds between looks at annotations that have no heartbeat: somebody may have removed them


class NodeSync:
    """`reasons` gives card uuid -> why it is unhealthy; `clock` seconds since 1970."""

    def __init__(
        self, settings: Settings, node: str, reasons: Callable[[], dict[str, str]], clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.path = node_path(node)
        self.reasons = reasons
        self.clock = clock
        self.dialects = settings.texts("kubernetes.register")
        self.beats = bool(set(self.dialects).intersection(registration.BEATING))
        self._inventory: Inventory | None = None
        self._stamp: tuple[int, int] = (0, 0)
        self._told: dict[str, str] = {}
        self._next = 0.0

    def register(self, api: Api) -> None:
        """Patch the node where its annotations are not what they should be, or a heartbeat is due."""
        wanted = registration.registered(self._offer(), self.dialects, self.clock()) if self.dialects else {}
        lasting = {key: value for key, value in wanted.items() if key not in registration.HEARTBEATS}
        if self.clock() < self._next and lasting == self._told:
            return
        found = pod_objects.annotations_of(api.get(self.path))
        changed: Object = {key: value for key, value in wanted.items() if found.get(key) != value}
        if changed:
            api.patch(self.path, {"metadata": {"annotations": changed}})
        self._told = lasting
        self._next = self.clock() + (HEARTBEAT if self.beats else LOOK)

    def release(self, api: Api, pods: list[Seen], dialects: frozenset[str]) -> list[str]:
        """Release the node's locks that were taken for `pods`, unless the node has changed since it was read."""
        node = api.get(self.path)
        keys = scheduler_protocols.held_locks(pod_objects.annotations_of(node), pods, dialects)
        if keys:
            nothing: Object = dict.fromkeys(keys)
            version = pod_objects.version_of(node)
            api.patch(self.path, {"metadata": {"resourceVersion": version, "annotations": nothing}})
        return keys

    def _offer(self) -> Offer:
        found, text, number = self._read(), self.settings.text, self.settings.number
        return Offer(
            found.cards, self.reasons(), found.driver_version, text("placement.policy"), number("scaling.cores"),
            number("scaling.memory"), int(number("resources.split_count")),
        )  # fmt: skip

    def _read(self) -> Inventory:
        """The inventory, read again when its file is another."""
        try:
            status = os.stat(paths.inventory(self.settings.run_dir))
            stamp = (status.st_ino, status.st_mtime_ns)
        except OSError:
            stamp = (0, 0)
        if self._inventory is None or stamp != self._stamp:
            self._inventory, self._stamp = inventories.read(self.settings.run_dir), stamp
        return self._inventory

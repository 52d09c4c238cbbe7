"""The node's own object: keeps its register annotations up to date, and releases locks on it.

Belongs here: reading the node, comparing it, and patching only what differs. The form of the annotations belongs to
vgpu.config.dialects.registration. vgpu.plugin.apiserver.scheduler_protocols decides which locks may be released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from vgpu.config import inventory, paths
from vgpu.config.dialects import registration
from vgpu.config.dialects.registration import Offer
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.node.service.file_signature import Signature, signature
from vgpu.plugin.apiserver import holdings, pod_objects, scheduler_protocols
from vgpu.plugin.apiserver.client import Api, Object
from vgpu.plugin.apiserver.pod_objects import PodObject
from vgpu.plugin.apiserver.pods import node_path

HEARTBEAT = 30.0  #: seconds between heartbeats
MINUTE = 60  #: seconds between signs of life in the holdings
LOOK = 300.0  #: seconds between reads of annotations that have no heartbeat: somebody may have removed them


class NodeAnnotations:
    """`reasons` returns card uuid -> why the card is unhealthy; `clock` returns seconds since 1970."""

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
        self._stamp: Signature = ()
        self._written: dict[str, str] = {}
        self._next = 0.0

    def write(self, api: Api, pods: list[PodObject]) -> None:
        """Patch the node's register annotations where they are wrong, or where a heartbeat is due."""
        wanted = registration.registered(self._offer(), self.dialects, self.clock()) if self.dialects else {}
        if "vgpu" in self.dialects:
            wanted[registration.HOLDINGS] = self._holdings(pods)
        lasting = {key: value for key, value in wanted.items() if key not in registration.HEARTBEATS}
        if self.clock() < self._next and lasting == self._written:
            return
        found = pod_objects.annotations_of(api.get(self.path))
        changed: Object = {key: value for key, value in wanted.items() if found.get(key) != value}
        if changed:
            api.patch(self.path, {"metadata": {"annotations": changed}})
        self._written = lasting
        self._next = self.clock() + (HEARTBEAT if self.beats else LOOK)

    def release(self, api: Api, pods: list[PodObject], dialects: frozenset[str]) -> list[str]:
        """Release the node's locks that were taken for `pods`; ApiError if the node has changed since the read."""
        node = api.get(self.path)
        keys = scheduler_protocols.held_locks(pod_objects.annotations_of(node), pods, dialects)
        if keys:
            nothing: Object = dict.fromkeys(keys)
            version = pod_objects.version_of(node)
            api.patch(self.path, {"metadata": {"resourceVersion": version, "annotations": nothing}})
        return keys

    def _holdings(self, pods: list[PodObject]) -> str:
        """What the node holds; the time in it changes every minute, as a sign of life."""
        present: dict[str, Collection[str]] = {pod.pod.uid: pod.pod.containers for pod in pods if not pod.ended}
        held = holdings.held(self.settings.run_dir, self.settings.state_dir, present)
        return registration.holdings(*held, self.clock() // MINUTE * MINUTE)

    def _offer(self) -> Offer:
        found, text, number = self.inventory(), self.settings.text, self.settings.number
        cards = found.cards
        if text("resources.mig_strategy") == "mixed":  # instances are kubelet's to count, and no scheduler's to choose
            cards = [card for card in cards if not card.parent]
        return Offer(
            cards, self.reasons(), found.driver_version, text("placement.policy"), number("scaling.cores"),
            number("scaling.memory"), int(number("resources.split_count")),
        )  # fmt: skip

    def inventory(self) -> Inventory:
        """The inventory; read again when its file has been replaced. VgpuError if there is none."""
        stamp = signature(paths.inventory(self.settings.run_dir), self._stamp)
        if self._inventory is None or stamp != self._stamp:
            self._inventory, self._stamp = inventory.read(self.settings.run_dir), stamp
        return self._inventory

"""The labels of the node: reads the GPU operator's, and writes those by which users select nodes with a card to offer.

Belongs here: reading the node now and then, and patching only what differs. Whoever needs the node as it was read gets
it (vgpu.plugin.apiserver.node_condition). The meaning of the operator's upgrade
labels belongs to vgpu.config.driver_upgrade, and the names of vgpu's own labels to vgpu.config.annotations.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from vgpu.config import driver_upgrade
from vgpu.config.annotations import DRIVER, MEMORY, MODEL, NODE_LABELS, READY
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import Api, ApiError, Object
from vgpu.plugin.apiserver.node_condition import NodeCondition
from vgpu.plugin.apiserver.pods import node_path

#: Seconds between two reads of the node. The operator's own pods need longer to leave the driver after its first label.
LOOK = 10.0
REFUSED = 300.0  #: seconds until the next attempt after the API server has refused one
#: Labels of GPU feature discovery that say what a label of vgpu would say.
SAID = {
    MODEL: ("nvidia.com/gpu.product",), MEMORY: ("nvidia.com/gpu.memory",),
    DRIVER: ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major"),
}  # fmt: skip
MIXED = "mixed"
MAX_VALUE = 63

Reasons = Callable[[], dict[str, str]]


class NodeLabels:
    """Calls `upgrade` with why the driver must not be used, or "", whenever it has read the node.

    `inventory` raises VgpuError when there is none. `reasons` returns card uuid -> why the card is unhealthy.
    """

    def __init__(
        self,
        node: str,
        conditions: Conditions,
        upgrade: Callable[[str], None],
        inventory: Callable[[], Inventory],
        reasons: Reasons,
        condition: NodeCondition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.condition = condition
        self.path = node_path(node)
        self.conditions = conditions
        self.upgrade = upgrade
        self.inventory = inventory
        self.reasons = reasons
        self.clock = clock
        self._next = self._next_write = self._next_condition = 0.0

    def look(self, api: Api) -> None:
        """Read the node and correct its labels if that is due; ApiError while the server is away.

        What was read last counts meanwhile.
        """
        if self.clock() < self._next:
            return
        try:
            node = api.get(self.path)
        except ApiError as error:
            self._next = self._refused(error, "driver upgrade", "not known whether the driver is being upgraded")
            return
        labels = pod_objects.labels_of(node)
        self._next = self.clock() + LOOK
        self.conditions.set("driver upgrade", "")
        reason = driver_upgrade.reason(labels)
        self.upgrade(reason)
        if self.clock() >= self._next_write:
            self._correct(api, labels, wanted(self._found(), {} if reason else self.reasons(), bool(reason)))
        if self.clock() >= self._next_condition:
            self._correct_condition(api, node)

    def _correct_condition(self, api: Api, node: Object) -> None:
        try:
            self.condition.correct(api, node)
            self.conditions.set("node condition", "")
        except ApiError as error:
            if error.kind != "conflict":
                self._next_condition = self._refused(error, "node condition", "the node's condition is not kept")

    def _found(self) -> Inventory | None:
        try:
            return self.inventory()
        except VgpuError:
            return None

    def _correct(self, api: Api, labels: dict[str, str], right: dict[str, str]) -> None:
        said = [label for label, others in SAID.items() if any(other in labels for other in others)]
        values = {label: None if label in said else right.get(label) for label in NODE_LABELS}
        changed: Object = {label: value for label, value in values.items() if labels.get(label) != value}
        if not changed:
            return
        try:
            api.patch(self.path, {"metadata": {"labels": changed}})
            self.conditions.set("node labels", "")
        except ApiError as error:
            self._next_write = self._refused(error, "node labels", "the node's labels are not kept")

    def _refused(self, error: ApiError, topic: str, text: str) -> float:
        """When to try again what the server has refused. Raises `error` if the server is away."""
        if error.is_outage:
            raise error
        self.conditions.set(topic, f"{text}: {error}")
        return self.clock() + REFUSED


def wanted(found: Inventory | None, reasons: dict[str, str], away: bool) -> dict[str, str]:
    """vgpu's own labels of a node. `away`: the driver must not be used, so no card is offered."""
    cards = found.cards if found else []
    ready = not away and any(card.uuid not in reasons for card in cards)
    labels = {READY: "true" if ready else "false"}
    if found and cards:
        models = {label_value(card.name) for card in cards}
        labels[MODEL] = models.pop() if len(models) == 1 else MIXED
        labels[MEMORY] = str(min(card.memory for card in cards) >> 20)
        labels[DRIVER] = label_value(found.driver_version)
    return labels


def label_value(text: str) -> str:
    """`text` as Kubernetes allows it as a label's value."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:MAX_VALUE].strip("-_.")

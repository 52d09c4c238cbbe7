"""The labels of the node: reads whether the GPU operator upgrades its driver.

Belongs here: reading the node now and then. The meaning of the operator's labels belongs to
vgpu.config.driver_upgrade.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.config import driver_upgrade
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import Api, ApiError
from vgpu.plugin.apiserver.pods import node_path

#: Seconds between two reads of the node. The operator's own pods need longer to leave the driver after its first label.
LOOK = 10.0
REFUSED = 300.0  #: seconds until the next read after the API server has refused one


class NodeLabels:
    """Calls `upgrade` with why the driver must not be used, or "", whenever it has read the node."""

    def __init__(
        self,
        node: str,
        conditions: Conditions,
        upgrade: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = node_path(node)
        self.conditions = conditions
        self.upgrade = upgrade
        self.clock = clock
        self._next = 0.0

    def look(self, api: Api) -> None:
        """Read the node if that is due; ApiError while the server is away. What was read last counts meanwhile."""
        if self.clock() < self._next:
            return
        try:
            labels = pod_objects.labels_of(api.get(self.path))
        except ApiError as error:
            if error.is_outage:
                raise
            self._next = self.clock() + REFUSED
            self.conditions.set("driver upgrade", f"not known whether the driver is being upgraded: {error}")
            return
        self._next = self.clock() + LOOK
        self.conditions.set("driver upgrade", "")
        self.upgrade(driver_upgrade.reason(labels))

"""What runs beside the main loop once kubelet knows of the cards: probes, health, the end of grants, API access.

Belongs here: starting and stopping them, each imported only now. None takes the plugin down: one that cannot start is
told in the log and tried again, and the rest goes on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Card
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions

if TYPE_CHECKING:
    from vgpu.plugin.apiserver import Cluster
    from vgpu.plugin.cards.health_monitor import HealthWatch
    from vgpu.plugin.probes import Check, Probes

NODE_NAME = "NODE_NAME"  #: environment, as the DaemonSet sets it
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"  #: as kubelet sets it in every pod
EXPIRY_PAUSE = 10.0
RETRY = 30.0
JOIN = 3.0  #: it may be waiting for kubelet, and writes nothing that could be torn
MAX_SILENCE = 120.0  #: of the health watch


class Companions:
    """For one state of the settings. `look` starts what is missing.

    `changed` is called when a card's health has; `all_reasons` gives card uuid -> why it is unhealthy, from any thread.
    """

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        checks: dict[str, Check],
        changed: Callable[[], None],
        all_reasons: Callable[[], dict[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.conditions = conditions
        self.checks = checks
        self.changed = changed
        self.all_reasons = all_reasons
        self.clock = clock
        self.probes: Probes | None = None
        self.health: HealthWatch | None = None
        self.cluster: Cluster | None = None
        self._watched: list[tuple[str, int, str]] = []
        self._expiry: threading.Thread | None = None
        self._stopped = threading.Event()
        self._next: dict[str, float] = {}

    def prepare(self, cards: list[Card]) -> None:
        """Before the first list: what an earlier plugin knew of the cards' health counts from the beginning."""
        if self.health is None:
            from vgpu.plugin.cards.health_monitor import HealthWatch  # noqa: PLC0415

            self.health = HealthWatch(self.settings, cards, self.conditions.log, self.changed)

    def look(self, cards: list[Card]) -> None:
        """`cards`: those that are offered, none while nothing is."""
        if self.settings.text("plugin.http") and self.probes is None:
            self._start("probes", self._start_probes)
        if not cards:
            return
        if self._watched != _addresses(cards):
            self._start("health", lambda: self._start_health(cards))
        if self._expiry is None:
            self._start("expiry", self._start_expiry)
        if self.cluster is None and self._has_api():
            self._start("kubernetes", self._start_cluster)

    def stop(self) -> None:
        self._stopped.set()
        if self.probes is not None:
            self.probes.close()
        if self.health is not None:
            self.health.stop()
        if self.cluster is not None:
            self.cluster.stop()
        if self._expiry is not None:
            self._expiry.join(JOIN)
        self.probes = self.health = self.cluster = self._expiry = None

    def reasons(self) -> dict[str, str]:
        """As NVML tells, those of the health watch."""
        found = self.health.reasons() if self.health is not None else {}
        return {uuid: reason for uuid, reason in found.items() if reason}

    def handed_over(self, grant_id: str) -> None:
        if self.cluster is not None:
            self.cluster.handed_over(grant_id)

    def hanging(self) -> str:
        """Which of the threads has given no sign for long, "" when none."""
        late = self.health is not None and self.health.silent() > MAX_SILENCE
        return "the health watch hangs" if late else ""

    def _start(self, name: str, start: Callable[[], None]) -> None:
        if self.clock() < self._next.get(name, 0.0):
            return
        self._next[name] = self.clock() + RETRY
        try:
            start()
        except (VgpuError, OSError, ImportError) as error:
            self.conditions.set(name, f"{name}: {error}")
        else:
            self.conditions.set(name, "")

    def _start_probes(self) -> None:
        from vgpu.plugin.probes import Probes  # noqa: PLC0415  # each of these after registration

        self.probes = Probes(self.settings.text("plugin.http"), self.checks)

    def _start_health(self, cards: list[Card]) -> None:
        from vgpu.plugin.cards.health_monitor import HealthWatch  # noqa: PLC0415

        if self.health is not None and self._watched:
            self.health.stop()
            self.health = None
        if self.health is None:
            self.health = HealthWatch(self.settings, cards, self.conditions.log, self.changed)
        self.health.start()
        self._watched = _addresses(cards)

    def _start_expiry(self) -> None:
        from vgpu.plugin.kubelet.grant_gc import Expiry  # noqa: PLC0415

        expiry = Expiry(self.settings, self.conditions.log)

        def rounds() -> None:
            while not self._stopped.wait(EXPIRY_PAUSE):
                expiry.round()

        self._expiry = threading.Thread(target=rounds, name="expiry", daemon=True)
        self._expiry.start()

    def _has_api(self) -> bool:
        use = self.settings.text("kubernetes.api")
        known = self.settings.text("kubernetes.kubeconfig") or os.environ.get(SERVICE_HOST)
        return use == "always" or (use == "auto" and bool(known))

    def _start_cluster(self) -> None:
        from vgpu.plugin.apiserver import Cluster  # noqa: PLC0415

        node = os.environ.get(NODE_NAME) or self.settings.node
        cluster = Cluster(self.settings, self.conditions.log, node, self.all_reasons)
        cluster.start()
        self.cluster = cluster


def _addresses(cards: list[Card]) -> list[tuple[str, int, str]]:
    """What the health watch knows a card by: a new inventory with the same cards is no reason to begin again."""
    return [(card.uuid, card.minor, card.bus_id) for card in cards]

"""The background services: probes, garbage collection of grants, access to the API server.

Belongs here: starting and stopping the services. Each module is imported when its service starts, which is after
registration with kubelet. No service can end the plugin: `BackgroundServices` logs one that cannot start, tries it
again after RETRY seconds, and the others run meanwhile. What a service does belongs to the service's own module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions
from vgpu.plugin.cards.driver_upgrade import DriverUpgrade

if TYPE_CHECKING:
    from vgpu.plugin.apiserver import Agent
    from vgpu.plugin.kubelet.grant_gc import GrantGc
    from vgpu.plugin.probes import Check, Probes

NODE_NAME = "NODE_NAME"  #: environment variable that the DaemonSet sets
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"  #: environment variable that kubelet sets in every pod
RETRY = 30.0  #: seconds after which a service that could not start is tried again
#: Seconds to wait for the garbage collection's thread. It may be waiting for kubelet; leaving it behind tears no file.
JOIN = 3.0


class BackgroundServices:
    """The services of one state of the settings. `look` starts those that are due and not running.

    `all_reasons` returns card uuid -> why the card is unhealthy, `faults` those that are out of order themselves, in
    words, and `not_known` why their health is not known, or ""; any thread may call these. The agent takes the reason
    of `upgrade` from the node's labels, and calls `changed` when it is another one. `claims_seen` is the agent's.
    """

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        checks: dict[str, Check],
        changed: Callable[[], None],
        all_reasons: Callable[[], dict[str, str]],
        clock: Callable[[], float],
        faults: Callable[[], dict[str, str]] = dict,
        upgrade: DriverUpgrade | None = None,
        not_known: Callable[[], str] = str,
        claims_seen: Callable[[str, frozenset[str]], None] | None = None,
    ) -> None:
        self.settings = settings
        self.claims_seen = claims_seen
        self.upgrade = upgrade or DriverUpgrade(settings.run_dir)
        self.conditions = conditions
        self.faults = faults
        self.not_known = not_known
        self.checks = checks
        self.changed = changed
        self.all_reasons = all_reasons
        self.clock = clock
        self.probes: Probes | None = None
        self.agent: Agent | None = None
        self._grant_gc: GrantGc | None = None
        self._grant_gc_thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._next: dict[str, float] = {}

    def look(self, offered: bool) -> None:
        """Start the services that are due. `offered`: whether kubelet is offered cards.

        The main loop calls this in each round, and kubelet's new checkpoint begins one.
        """
        if self.settings.text("plugin.http") and self.probes is None:
            self._start("probes", self._start_probes)
        if not offered:
            return
        if self._grant_gc is None:
            self._start("expiry", self._start_grant_gc)
        else:
            self._grant_gc.look_at_checkpoint()
        if self.agent is None and self._has_api():
            self._start("kubernetes", self._start_agent)

    def stop(self) -> None:
        self._stopped.set()
        if self.probes is not None:
            self.probes.close()
        if self.agent is not None:
            self.agent.stop()
        if self._grant_gc is not None and self._grant_gc_thread is not None:
            self._grant_gc.wake()
            self._grant_gc_thread.join(JOIN)
        self.probes = self.agent = self._grant_gc = self._grant_gc_thread = None

    def warnings(self) -> list[str]:
        """The conditions that hold in the services that have a thread of their own."""
        services = [one for one in (self.agent, self._grant_gc) if one is not None]
        return [text for one in services for text in list(one.conditions.present.values())]

    def handed_over(self, grant_id: str) -> None:
        if self.agent is not None:
            self.agent.handed_over(grant_id)
        self._look_at_grants()

    def _start(self, name: str, start: Callable[[], None]) -> None:
        if not self._is_due(name):
            return
        try:
            start()
        except (VgpuError, OSError, ImportError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread is left
            self.conditions.set(name, f"{name}: {error}")
        else:
            self.conditions.set(name, "")

    def _is_due(self, name: str) -> bool:
        """Whether to try to start the service now. The next time is then after RETRY seconds."""
        if self.clock() < self._next.get(name, 0.0):
            return False
        self._next[name] = self.clock() + RETRY
        return True

    def _start_probes(self) -> None:
        from vgpu.plugin.probes import Probes  # noqa: PLC0415  # these imports come after registration

        self.probes = Probes(self.settings.text("plugin.http"), self.checks)

    def _start_grant_gc(self) -> None:
        from vgpu.plugin.kubelet.grant_gc import GrantGc  # noqa: PLC0415

        grant_gc = GrantGc(self.settings, self.conditions.log, self._pods_gone)
        self._grant_gc_thread = threading.Thread(
            target=grant_gc.run, args=(self._stopped,), name="grant-gc", daemon=True
        )
        self._grant_gc_thread.start()
        self._grant_gc = grant_gc

    def _pods_gone(self) -> Set[str]:
        """The uids of pods that are over according to the API server; none without access to it."""
        return self.agent.pods_gone() if self.agent is not None else frozenset()

    def _look_at_grants(self) -> None:
        if self._grant_gc is not None:
            self._grant_gc.wake()

    def _has_api(self) -> bool:
        use = self.settings.text("kubernetes.api")
        known = self.settings.text("kubernetes.kubeconfig") or os.environ.get(SERVICE_HOST)
        return use == "always" or (use == "auto" and bool(known))

    def _start_agent(self) -> None:
        from vgpu.plugin.apiserver import Agent  # noqa: PLC0415

        node = os.environ.get(NODE_NAME) or self.settings.node
        agent = Agent(
            self.settings, self.conditions.log, node, self.all_reasons, pod_over=self._look_at_grants,
            faults=self.faults, upgrade=self._say_upgrade, not_known=self.not_known, claims_seen=self.claims_seen,
        )  # fmt: skip
        agent.start()
        self.agent = agent

    def _say_upgrade(self, reason: str) -> None:
        self.upgrade.say(reason)
        if reason != self.upgrade.reason:
            self.changed()

"""The DRA driver within the device plugin's process: its parts, its threads, and its part of each round.

Belongs here: what is done when. Sockets and CDI files come first and need nothing else: pods can end, and containers
start again, without an NVIDIA driver and without the API server. Not here: what a part does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from vgpu.config import grants
from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Card
from vgpu.config.settings import COMPILED_PATH, Settings
from vgpu.node.service import claim_devices, kubelet_resources
from vgpu.node.service.log import Conditions
from vgpu.plugin.apiserver.client import Api, ApiError
from vgpu.plugin.dra.driver import Driver
from vgpu.plugin.dra.prepared_claims import PreparedClaims
from vgpu.plugin.dra.publisher import Offer, Publisher
from vgpu.plugin.dra.server import Server

POD_UID = "POD_UID"  #: environment variable that the DaemonSet sets
RECONNECT = 5.0  #: seconds between attempts to find an API server
AGAIN = 1.0  #: seconds between attempts to read claims again
FORGET_EACH = 60.0  #: seconds between looks whether claims of earlier boots are gone
JOIN = 2.0  #: seconds to wait for each thread at the end


class DraService:
    """`hook` is the hook's program on the host, `config_path` its settings. `connect` makes the API server's client
    from a kubeconfig. VgpuError where the node has no name.
    """

    def __init__(
        self,
        settings: Settings,
        node: str,
        hook: str,
        config_path: str,
        boot_id: str,
        conditions: Conditions,
        connect: Callable[[str], Api] = Api,
    ) -> None:
        if not node:
            do = "set NODE_NAME from spec.nodeName, or name the node in vgpuctl config apply --node"
            raise VgpuError("NODE_NAME", expected="this node's name in Kubernetes", found="nothing", do=do)
        self.settings = settings
        self.conditions = conditions
        options = [] if config_path == COMPILED_PATH else ["--config", config_path]
        self.claims = PreparedClaims(settings, boot_id, [hook, *options])
        self.connect = connect
        self.api: Api | None = None
        self.driver = Driver(node, self.claims, lambda: self.api, conditions.log)
        # Both lie below kubelet's --root-dir; its folder of device plugins does not move with that.
        kubelet_dir = os.path.dirname(os.path.dirname(settings.text("plugin.pod_resources_socket")))
        self.server = Server(kubelet_dir, os.environ.get(POD_UID, ""), self.driver, conditions)
        self.publisher = Publisher(node, conditions)
        self._stopped = threading.Event()
        self._seen: dict[str, set[str]] = {}  # namespace -> claims of new pods, to be read again
        self._guard = threading.Lock()
        self._woken = threading.Event()
        self._threads: list[threading.Thread] = []

    def look(self, cards: list[Card], ill: dict[str, str], faulty: dict[str, str], version: str, alone: bool) -> None:
        """One round. `ill`: card uuid -> why no container should get it. `alone`: no other plugin runs on the node."""
        self._restore()
        policy = kubelet_resources.policy_of(self.settings)
        found = claim_devices.of_cards(cards, policy, ill, faulty)
        parts = [part for device in found for part in claim_devices.parts_of(device)]
        self.driver.devices = {device.name: device for device in [*found, *parts]}  # parts of before the setting, too
        with_parts = self.settings.flag("kubernetes.dra_parts")
        self.server.look()
        self.server.health.update([*found, *parts] if with_parts else found)
        if not self._threads:
            self._start()
        if alone and found:
            left = grants.count(self.settings.state_dir)
            withheld = f"{left} grants of the device plugin are left on this node: drain it" if left else ""
            effect = self.settings.text("kubernetes.dra_taint")
            self.publisher.offer(Offer(found, version, effect, withheld, with_parts))

    def _restore(self) -> None:
        for note in self.claims.restore():
            self.conditions.log.warning(note)

    def claims_seen(self, namespace: str, names: frozenset[str]) -> None:
        """A new pod of this node has these claims. Never blocks."""
        with self._guard:
            self._seen.setdefault(namespace, set()).update(names)
        self._woken.set()

    def is_ready(self) -> tuple[bool, str]:
        """(whether kubelet can prepare claims here, the state in words)."""
        if not self.server.registered:
            return False, "the DRA driver is not registered with kubelet"
        if not self.publisher.published:
            return False, "no card is published: " + (self.conditions.present.get("resource slices") or "not yet")
        cards = sum(not device.part for device in self.driver.devices.values())
        return True, f"registered, {cards} cards published"

    def stop(self, grace: float) -> None:
        self._stopped.set()
        self._woken.set()
        self.publisher.stop()
        self.server.close(grace)
        for thread in self._threads:
            thread.join(JOIN)

    def _start(self) -> None:
        for name, work in (("dra-slices", self._publish), ("dra-claims", self._read_claims)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _publish(self) -> None:
        while not self._stopped.is_set():
            try:
                self.api = self.connect(self.settings.text("kubernetes.kubeconfig"))
            except (VgpuError, ImportError) as error:
                self.conditions.set("dra api", f"no access to the API server: {shown(str(error))}")
                self._stopped.wait(RECONNECT)
                continue
            self.conditions.set("dra api", "")
            self._woken.set()
            return self.publisher.run(self.api)
        return None

    def _read_claims(self) -> None:
        """Read the claims of new pods again, and now and then those of earlier boots, whose claims may be gone."""
        due = 0.0
        while not self._stopped.is_set():
            self._woken.wait(FORGET_EACH)
            self._woken.clear()
            try:
                if self.api and time.monotonic() >= due:
                    self.driver.forget()
                    due = time.monotonic() + FORGET_EACH
                self._refresh()
                self.conditions.set("dra claims", "")
            except (ApiError, VgpuError, OSError) as error:
                self.conditions.set("dra claims", f"claims are not read again: {error}")
                self._stopped.wait(AGAIN)

    def _refresh(self) -> None:
        with self._guard:
            seen, self._seen = self._seen, {}
        try:
            while seen:
                namespace = next(iter(seen))
                self.driver.refresh(namespace, seen[namespace])
                del seen[namespace]
        finally:
            for namespace, names in seen.items():
                self.claims_seen(namespace, frozenset(names))

"""kubelet's view of a card that becomes ill and recovers, with vgpud and plugin as processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest
from daemons import Daemon, wait_for
from kubelet_devices import DeviceManager
from plugin_process import Plugin

from vgpu.config import health, inventory
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import staleness

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
CARDS = 2


class Site:
    """A node of two cards with its plugin and kubelet's device manager."""

    def __init__(self, path: Path) -> None:
        settings = {
            "plugin.socket_dir": str(path / "kubelet"),
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "never",
        }
        self.node = nodes.SimulatedNode(path / "node", "a100x2", **settings)
        self.node.take_inventory()
        self.kubelet = DeviceManager(path / "kubelet", set, sorted).start()
        self.daemon = Daemon(self.node).start()
        self.plugin = Plugin(self.node).start()

    def healthy(self) -> int:
        return self.kubelet.allocatable().get(CORE, 0)

    def reaches(self, cores: int) -> None:
        """Wait until so many cores and the same part of memory are healthy."""
        wait_for(lambda: self.healthy() == cores, 120, lambda: f"{self.healthy()} healthy; {self.plugin.text()}")
        wait_for(lambda: self._part(MEMORY) == self._part(CORE) == cores / (100 * CARDS))

    def _part(self, resource: str) -> float:
        healthy, unhealthy = (of.get(resource, set()) for of in (self.kubelet.healthy, self.kubelet.unhealthy))
        return len(healthy) / max(len(healthy | unhealthy), 1)

    def watched(self) -> None:
        """Wait until vgpud waits for events: a process of it has NVML open."""
        wait_for(lambda: any("libnvidia-ml" in text for text in self._maps()), what=self.daemon.text())
        time.sleep(1.0)

    def _maps(self) -> Iterator[str]:
        for path in Path(f"/proc/{self.daemon.pid}/task").glob("*/children"):
            for pid in path.read_text().split():
                maps = Path(f"/proc/{pid}/maps")
                yield maps.read_text() if maps.exists() else ""

    def event(self, card: int, kind: str, data: int = 0) -> None:
        nodes.simctl().inject_event(str(self.node.sim), card, kind, data)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        made.reaches(100 * CARDS)
        made.watched()
        yield made
    finally:
        made.plugin.stop()
        made.daemon.stop()
        made.kubelet.stop()


def test_an_error_and_its_acknowledgement(site: Site) -> None:
    site.event(1, "xid", 62)
    site.reaches(100)
    site.event(0, "xid", 31)  # a program's fault
    assert "Xid 62" in site.plugin.text()
    site.plugin.kill()
    wait_for(lambda: site.healthy() == 0)
    site.plugin.start()
    wait_for(site.healthy)
    for _ in range(100):
        assert site.healthy() == 100, "a new plugin knows what the old one knew, from its first list on"
        time.sleep(0.02)
    site.daemon.kill()
    record = Path(f"{site.node.settings.run_dir}/health.json")
    old = json.loads(record.read_text())
    record.write_text(json.dumps({**old, "written": max(old["written"] - 1e6, 0)}))
    wait_for(lambda: "vgpud does not watch them" in site.plugin.text(), what=site.plugin.text())
    assert site.healthy() == 100, "what was known stays while vgpud is away"
    site.daemon.start()
    wait_for(lambda: "over: the health of the cards" in site.plugin.text(), what=site.plugin.text())
    assert site.healthy() == 100
    os.unlink(record)
    site.reaches(100 * CARDS)


def test_a_new_container_gets_no_ill_card_and_a_restart_keeps_its_own(site: Site) -> None:
    """The ledger's own word, as the hook asks for it: without kubelet and without the plugin."""
    cards = inventory.read(site.node.settings.run_dir).cards
    ill, well = cards[0].uuid, cards[1].uuid
    site.event(0, "xid", 79)
    wait_for(lambda: health.ill(site.node.settings.run_dir, staleness.boot_id(), since_boot()), what=site.daemon.text())
    ledger = Ledger(site.node.settings, cards)
    for _ in range(3):
        assert [card.uuid for card in ledger.place(Request(1, 30, 0), None).cards] == [well]
    with pytest.raises(VgpuError, match="unhealthy: Xid 79"):
        ledger.place(Request(2, 30, 0), None)
    assert [card.uuid for card in ledger.place(Request(1, 30, 0).fixed_on((ill,)), None).cards] == [ill]

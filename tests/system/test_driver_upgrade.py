"""The GPU operator upgrades the driver of a node: vgpud and the device plugin, as processes, let go of it meanwhile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daemons
import nodes
import psutil
import pytest
from daemons import wait_for
from fake_apiserver import FakeApiServer
from kubelet_devices import DeviceManager
from plugin_process import Plugin

from vgpu.config import paths

pytestmark = pytest.mark.root

CORE = "tencent.com/vcuda-core"
STATE = "nvidia.com/gpu-driver-upgrade-state"
OLD, NEW = "550.54.15", "560.35.03"
TIMEOUT = 120  #: seconds, for a label to have its effect: the plugin reads it every 15 s


class Site:
    """A node of a cluster, with vgpud and the plugin."""

    def __init__(self, path: Path) -> None:
        self.api = FakeApiServer()
        self.api.put_node("n")
        settings = {
            "plugin.socket_dir": str(path / "kubelet"), "plugin.http": "", "metrics.listen": "",
            "kubernetes.kubeconfig": self.api.kubeconfig(path / "kubeconfig"),
        }  # fmt: skip
        self.node = nodes.SimulatedNode(path / "node", "a100x2", **settings)
        self.kubelet = DeviceManager(path / "kubelet", set, sorted).start()
        self.daemon = daemons.Daemon(self.node).start().ready()
        self.plugin = Plugin(self.node).start(NODE_NAME="n")

    def close(self) -> None:
        self.plugin.stop()
        self.daemon.stop()
        self.kubelet.stop()
        self.api.close()

    def label(self, state: str | None) -> None:
        self.api.label_node("n", **{STATE: state})

    def offers(self, cores: int) -> None:
        found = self.kubelet.allocatable
        wait_for(lambda: found().get(CORE) == cores, TIMEOUT, lambda: f"{found()}\n{self.plugin.text()}")

    def ids(self) -> set[str]:
        """All devices that kubelet knows, healthy or not."""
        return set(self.kubelet.healthy[CORE] | self.kubelet.unhealthy[CORE])

    def of_the_driver(self) -> list[str]:
        """What of the driver vgpud, the plugin and their processes have open or mapped."""
        found = []
        for process in (self.daemon, self.plugin):
            root = psutil.Process(process.pid)
            for one in [root, *root.children(recursive=True)]:
                try:
                    links = [os.readlink(path) for path in Path(f"/proc/{one.pid}/fd").iterdir()]
                    maps = Path(f"/proc/{one.pid}/maps").read_text().splitlines()
                except FileNotFoundError:  # it has ended meanwhile
                    continue
                named = (str(self.node.driver), str(self.node.sim), "/dev/nvidia")
                found += [f"{one.pid}: {line}" for line in links + maps if any(name in line for name in named)]
        return found

    def record(self) -> dict[str, Any]:
        """The inventory."""
        return dict(json.loads(Path(paths.inventory(self.node.settings.run_dir)).read_text()))

    def install(self) -> None:
        """The next driver, in the place of the one before."""
        libraries = self.node.driver / "usr/lib" / f"{os.uname().machine}-linux-gnu"
        for path in list(libraries.iterdir()):
            target = path.with_name(path.name.replace(OLD, NEW))
            if path.is_symlink():
                to = str(path.readlink()).replace(OLD, NEW)
                path.unlink()
                target.symlink_to(to)
            else:
                path.rename(target)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_the_driver_is_let_go_of_until_the_next_one_is_validated(site: Site) -> None:
    """Meanwhile the driver's files are away: whoever opened NVML, or took an inventory, would say that it fails."""
    site.offers(200)
    wait_for(site.of_the_driver, what="the health monitor holds NVML open")
    ids, before = site.ids(), site.record()
    file = Path(paths.driver_upgrade(site.node.settings.run_dir))
    site.label("wait-for-jobs-required")
    site.offers(0)
    assert site.ids() == ids, "kubelet fails pods whose devices it does not know any more"
    wait_for(lambda: site.daemon.health()["driver_upgrade"].endswith("wait-for-jobs-required"), what=site.daemon.text)
    wait_for(lambda: not site.of_the_driver(), what=lambda: "\n".join(site.of_the_driver()))
    refused = site.node.vgpuctl("inventory", "refresh", check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert "NVML: expected a driver that may be used, found the GPU operator upgrades" in refused.stderr
    checked = json.loads(site.node.vgpuctl("doctor", "--output", "json", check=False).stdout)
    (found,) = (one["found"] for one in checked if one["check"] == "cards in use")
    assert found.startswith("NVML: the GPU operator upgrades the driver")
    version = site.node.driver / "proc/driver/nvidia/version"
    text = version.read_text()
    version.unlink()  # the module is unloaded
    site.node.driver.rename(site.node.directory / "away")
    said = len(site.daemon.text()), len(site.plugin.text())
    site.label("pod-restart-required")
    wait_for(lambda: "pod-restart-required" in site.daemon.health()["driver_upgrade"], TIMEOUT)
    site.daemon.rounds(3)
    (site.node.directory / "away").rename(site.node.driver)
    site.install()
    version.write_text(text.replace(OLD, NEW))
    site.label("validation-required")
    wait_for(lambda: "validation-required" in site.daemon.health()["driver_upgrade"], TIMEOUT)
    site.daemon.rounds(3)
    assert site.record() == before
    assert site.of_the_driver() == []
    lines = [*site.daemon.text()[said[0] :].splitlines(), *site.plugin.text()[said[1] :].splitlines()]
    assert [line for line in lines if "NVML" in line.replace("NVML is closed", "") or "inventory:" in line] == []
    site.plugin.kill()
    site.plugin.start(NODE_NAME="n")
    wait_for(lambda: site.plugin.text().count("NVML is closed, no card is offered") > 1, what=site.plugin.text)
    assert site.of_the_driver() == [], "the next plugin knows from the record what the one before knew"
    site.label("uncordon-required")
    site.offers(200)
    assert not file.exists()
    wait_for(lambda: site.record()["driver_version"] == NEW, TIMEOUT, site.daemon.text)
    assert site.ids() == ids
    wait_for(site.of_the_driver, TIMEOUT, "the health monitor holds NVML open again")

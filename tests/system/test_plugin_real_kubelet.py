"""The plugin under a real kubelet with static pods: containers, init containers, kubelet's own lists, and CDI.

kubelet 1.20 is compiled from Debian's sources if it is missing, so this runs with --long only. Restarts, refusals, full
cards and the end of pods are in test_plugin_cluster.py and test_plugin_cluster_pod_end.py, with the same kubelet.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import kubelet_api
import nodes
import pytest
from container_site import pairs
from daemons import wait_for
from kubelet_api import message
from kubelet_devices import CHECKPOINT
from plugin_process import Plugin
from pod_site import CORE, MEMORY, UNIT, plugin_settings
from real_kubelet import NODE, Place, RealKubelet

from vgpu.config import claims

pytestmark = [pytest.mark.root, pytest.mark.long]

LIMIT = "tencent.com/vcuda-core-limit"
LOOK = "cudaprobe info; sleep 86400"
PATTERNS = ("vgpu.io/*", "tencent.com/*", "nvidia.com/*")


class Site:
    """kubelet, containerd and the plugin on one node. With `cdi` nothing but CDI calls the hook: containerd is 1.7."""

    def __init__(self, directory: Path, image: Path, cdi: bool = False) -> None:
        self.place = Place(directory / "place")
        kubelet = directory / "k"
        settings = plugin_settings(kubelet, **{
            "plugin.socket_dir": str(self.place.lib / "kubelet/device-plugins"),
            "plugin.pod_resources_socket": str(kubelet / "root/pod-resources/kubelet.sock"),
            "plugin.grant_grace": 1, "plugin.cdi": cdi,
        })  # fmt: skip
        self.node = nodes.SimulatedNode(directory / "node", "a100x2", **settings)
        self.node.take_inventory()
        programs = containerd_bed.programs("1.7") if cdi else Path("/usr/bin")
        default, patterns = ("plain", ()) if cdi else ("base", PATTERNS)
        self.bed = containerd_bed.Containerd(
            directory / "bed", programs, self.node, default=default, patterns=patterns, prefix=self.place.prefix
        )
        self.bed.start(image)
        self.kubelet = RealKubelet(kubelet, self.place, self.bed).start()
        self.plugin = Plugin(self.node).start()

    def end(self) -> None:
        self.plugin.kill()
        self.kubelet.end()
        self.bed.stop()
        self.place.end()

    def ready(self) -> Site:
        """Wait until kubelet has accepted both lists."""
        wait_for(lambda: self._known() == {CORE: 200, MEMORY: 314}, 60, self.what_happened)
        return self

    def what_happened(self) -> str:
        events = [line for line in self.kubelet.text().splitlines() if "Event occurred" in line and "Node" not in line]
        return "\n".join([*events[-20:], self.plugin.text()[-2000:]])

    def _known(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.checkpoint()["RegisteredDevices"].items()}

    def checkpoint(self) -> dict[str, Any]:
        path = self.kubelet.device_plugins / CHECKPOINT
        empty: dict[str, Any] = {"RegisteredDevices": {}, "PodDeviceEntries": []}
        return json.loads(path.read_text())["Data"] if path.exists() else empty  # type: ignore[no-any-return]

    def claims(self) -> dict[str, claims.Claim]:
        """The claims, by the names of pod and container."""
        found = [self.node.claim(container) for container in self.node.claims()]
        return {claim.name.partition("/")[2].replace(f"-{NODE}", ""): claim for claim in found if claim.ready}

    def seen(self, pod: str, container: str = "c") -> dict[str, str]:
        """A container's output about its cards."""

        def text() -> str:
            return self.kubelet.output(pod, container)

        wait_for(lambda: "nvml_total" in text(), 90, self.what_happened)
        return pairs(text())


@pytest.fixture
def site(image: Path) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:  # a socket's path is at most 107 characters long
        made = Site(Path(name), image)
        try:
            yield made.ready()
        finally:
            made.end()


def share(cores: int, units: int, name: str = "c", script: str = LOOK) -> dict[str, Any]:
    limits = {CORE: str(cores), MEMORY: str(units)}
    return {"name": name, "command": ["sh", "-c", script], "resources": {"limits": limits}}


def listed(site: Site) -> dict[tuple[str, str], dict[str, int]]:
    """kubelet's own pod-resources service: (pod, container) -> units."""
    with kubelet_api.dial(site.kubelet.pod_resources) as channel:
        answer = kubelet_api.call(
            channel, "/v1.PodResourcesLister/List", message("v1.ListPodResourcesRequest")(),
            "v1.ListPodResourcesResponse",
        )  # fmt: skip
    return {
        (pod.name, container.name): {one.resource_name: len(one.device_ids) for one in container.devices}
        for pod in answer.pod_resources
        for container in pod.containers
    }


def test_pods_get_what_their_manifests_say(site: Site) -> None:
    """Half a card with a limit on cores, a pod of two containers, a pod with an init container, a whole card."""
    site.kubelet.manifest("half", [share(50, 8)], annotations={LIMIT: "80"})
    site.kubelet.manifest("twins", [share(10, 3, "a"), share(10, 5, "b")])
    site.kubelet.manifest("steps", [share(20, 4)], inits=[share(25, 6, "prepare", "cudaprobe info")])
    whole = {"name": "c", "command": ["sh", "-c", LOOK], "resources": {"limits": {CORE: "100"}}}
    for pod, container, units in (("half", "c", 8), ("twins", "a", 3), ("twins", "b", 5), ("steps", "c", 4)):
        found = site.seen(pod, container)
        assert (found["cards"], found["card0.total"]) == ("1", str(units * UNIT))
    assert str(6 * UNIT) in site.kubelet.output("steps", "prepare")
    site.kubelet.manifest("whole", [whole])
    assert int(site.seen("whole")["card0.total"]) > 39 << 30
    held = site.claims()
    assert [(card.cores, card.core_limit) for card in held["half/c"].cards] == [(50, 80)]
    assert held["whole/c"].cards[0].uuid not in {
        claim.cards[0].uuid for name, claim in held.items() if name != "whole/c"
    }
    assert listed(site)[f"twins-{NODE}", "b"] == {CORE: 10, MEMORY: 5}
    assert (f"steps-{NODE}", "prepare") not in listed(site), "init containers are not listed"


def test_a_kubelet_that_knows_no_cdi_devices_passes_the_annotation_on(image: Path) -> None:
    """kubelet 1.20 reads an answer without the field of CDI devices, which is younger."""
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        site = Site(Path(name), image, cdi=True)
        try:
            site.ready().kubelet.manifest("half", [share(50, 8)])
            assert site.seen("half")["card0.total"] == str(8 * UNIT)
            assert set(site.claims()) == {"half/c"}
        finally:
            site.end()

"""The plugin under a real kubelet: static pods, containerd 1.6, the hook. They check the stand-in's assumptions.

kubelet 1.20 is compiled from Debian's sources if it is missing, so this runs with --long only.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd_bed
import kubelet_api
import nodes
import oci_images
import pytest
import suites
from daemons import wait_for
from kubelet_api import message
from kubelet_devices import CHECKPOINT
from plugin_process import Plugin
from real_kubelet import NODE, Place, RealKubelet

from vgpu.config import claims, grants

pytestmark = [pytest.mark.root, pytest.mark.long]

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
LIMIT = "tencent.com/vcuda-core-limit"
UNIT = 256 << 20
LOOK = "cudaprobe info; sleep 86400"
PATTERNS = ("vgpu.io/*", "tencent.com/*", "nvidia.com/*")


class Site:
    """kubelet, containerd and the plugin on one node. With `cdi` nothing but CDI calls the hook: containerd is 1.7."""

    def __init__(self, directory: Path, image: Path, cdi: bool = False) -> None:
        self.place = Place(directory / "place")
        kubelet = directory / "k"
        settings = {
            "plugin.socket_dir": str(self.place.lib / "kubelet/device-plugins"),
            "plugin.pod_resources_socket": str(kubelet / "root/pod-resources/kubelet.sock"),
            "plugin.grant_grace": 1,
            "plugin.cdi": cdi,
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "never",
        }
        self.node = nodes.SimulatedNode(directory / "node", "a100x2", **settings)
        self.node.take_inventory()
        programs = suites.unpack("trixie", "containerd") / "usr/bin" if cdi else Path("/usr/bin")
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

    def ready(self, times: int = 1) -> Site:
        """Wait until kubelet has accepted both lists `times` times, restarts included."""
        wait_for(lambda: self.plugin.text().count(f"registered resource={MEMORY}") >= times, 60, self.what_happened)
        wait_for(lambda: self._known() == {CORE: 200, MEMORY: 320}, 60, self.what_happened)
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
        run = self.node.settings.run_dir
        found = [claims.read(run, path.parent.name) for path in Path(run, "containers").glob("*/claim.json")]
        return {claim.name.partition("/")[2].replace(f"-{NODE}", ""): claim for claim in found if claim.ready}

    def seen(self, pod: str, container: str = "c", attempt: int = 0) -> dict[str, str]:
        """A container's output about its cards."""

        def text() -> str:
            return self.kubelet.output(pod, container, attempt)

        wait_for(lambda: "nvml_total" in text(), 90, self.what_happened)
        return dict(line.split(" ", 1) for line in text().splitlines() if " " in line)


@pytest.fixture(scope="module")
def image(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "base.tar"
    return oci_images.write(base_trees["debian"], archive, containerd_bed.IMAGE, ["sleep", "86400"])


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


def test_running_containers_survive_restarts_of_plugin_and_kubelet(site: Site) -> None:
    site.kubelet.manifest("steady", [share(30, 4)])
    card = site.seen("steady")["card0.uuid"]
    before = site.claims()["steady/c"]
    site.plugin.kill()
    site.plugin.start()
    site.ready(2)
    site.kubelet.restart()
    site.ready(3)
    site.kubelet.manifest("later", [share(40, 5)])
    assert site.seen("later")["card0.total"] == str(5 * UNIT)
    assert site.claims()["steady/c"].container == before.container, "it was left alone"
    assert site.bed.client is not None
    site.bed.client.call("StopContainer", container_id=before.container, timeout=0)
    assert site.seen("steady", attempt=1)["card0.uuid"] == card
    assert site.claims()["steady/c"].grants == before.grants


def test_a_refusal_is_in_the_pods_events(site: Site) -> None:
    site.kubelet.manifest("odd", [share(150, 4)])
    wait_for(lambda: "UnexpectedAdmissionError" in site.kubelet.text(), 60, site.what_happened)
    (line, *_) = [line for line in site.kubelet.text().splitlines() if "UnexpectedAdmissionError" in line]
    assert "150" in line
    assert site.claims() == {}
    orphans = grants.read_all(site.node.settings.state_dir)[0]  # of memory, if kubelet asked for that first
    assert [grant for grant in orphans if grant.cards or grant.resource == "cores"] == []


def test_a_full_node_is_reported_and_tried_again(site: Site) -> None:
    """The grants of a pod whose manifest is removed end, which makes the room."""
    first = site.kubelet.manifest("one", [share(60, 4)])
    site.kubelet.manifest("two", [share(60, 4)])
    for pod in ("one", "two"):
        site.seen(pod)
    site.kubelet.manifest("three", [share(70, 4)])
    wait_for(lambda: "40 cores free of 100" in site.kubelet.text(), 60, site.what_happened)
    first.unlink()
    wait_for(lambda: "three/c" in site.claims(), 180, site.what_happened)
    assert site.claims()["three/c"].cards[0].cores == 70


def test_grants_wait_for_kubelet(site: Site) -> None:
    """The empty list of a kubelet that has just started ends none."""
    site.kubelet.manifest("kept", [share(30, 4)])
    site.seen("kept")
    mine = {grant.id for grant in grants.read_all(site.node.settings.state_dir)[0]}
    site.kubelet.stop()
    time.sleep(15)  # more than the plugin's rounds and the grace period
    site.kubelet.start()
    site.ready(2)
    time.sleep(15)
    assert {grant.id for grant in grants.read_all(site.node.settings.state_dir)[0]} == mine
    assert len(mine) == 2


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

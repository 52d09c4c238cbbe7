"""Pods that a scheduler has placed: API server, device plugin, kubelet's stand-in, runc, the hook, and the answers.

The API server is a fake over real HTTP, with the annotations that HAMi, gpu-admission and vgpu's own extender write.
The tests check what the containers hold in the end, and the annotations that the schedulers read.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import pytest
from daemons import wait_for
from fake_apiserver import FakeApiServer
from kubelet import Container, Kubelet, Pod, Spec
from kubelet_runtimes import RuncRuntime
from plugin_process import Plugin

from vgpu.config import claims, pods

pytestmark = pytest.mark.root

MIB = 1 << 20
NODE = "testnode"
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
GPU, GPUMEM, GPUCORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
IGNORED = (GPUMEM, GPUCORES)  #: resources of the extender's own, which kubelet does not know
HAMI_MODE = {"resources.mode": "gpu", "resources.split_count": 10, "kubernetes.register": ["vgpu", "hami"]}


class Site:
    """A node in a cluster."""

    def __init__(self, directory: Path, rootfs: Path, **settings: object) -> None:
        self.server = FakeApiServer()
        self.server.put_node(NODE)
        kubelet = self.sockets = Path(
            tempfile.mkdtemp(prefix="vgpu-")
        )  # a socket's path is at most 107 characters long
        access = {
            "plugin.socket_dir": str(kubelet / "device-plugins"),
            "plugin.pod_resources_socket": str(kubelet / "pod-resources/kubelet.sock"),
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "always",
            "kubernetes.kubeconfig": self.server.kubeconfig(directory / "kubeconfig"),
        }
        self.node = nodes.SimulatedNode(directory / "node", "a100x2", **{**access, **settings})
        self.node.take_inventory()
        self.cards = [card["uuid"] for card in self.node.read_cards()]
        self.runtime = RuncRuntime(directory / "runc", self.node, rootfs)
        self.kubelet = Kubelet(kubelet, self.runtime)
        self.plugin = Plugin(self.node)
        gpu = settings.get("resources.mode") == "gpu"
        self.kubelet.start()
        self.plugin.start()
        self.kubelet.ready(*((GPU,) if gpu else (CORE, MEMORY)))
        wait_for(self.server.watching, 120, self.plugin.text())

    def end(self) -> None:
        self.kubelet.end()
        self.plugin.kill()
        self.server.close()
        self.runtime.end()
        shutil.rmtree(self.sockets)

    def run(
        self, name: str, containers: list[Container], annotations: dict[str, str], inits: list[Container] | None = None
    ) -> Pod:
        """Run a pod that its scheduler has bound: the API server gets it first, then kubelet."""
        spec = Spec(containers, inits or [], annotations, name=name)
        limits: dict[str, dict[str, object]] = {}
        for container in [*spec.inits, *spec.containers]:
            limits[container.name] = {key: str(amount) for key, amount in container.limits.items()}
            container.limits = {key: amount for key, amount in container.limits.items() if key not in IGNORED}
        init = tuple(container.name for container in spec.inits)
        self.server.put_pod(name, NODE, spec.uid, limits, annotations, init=init)
        return self.kubelet.run(spec)

    def held(self, pod: Pod, container: str = "main") -> list[tuple[str, int, int]]:
        """(card, MiB, cores) of a container that runs."""
        wait_for(lambda: pod.statuses[container].running, 60, f"{pod.phase} {pod.message} {pod.events}")
        claim = claims.read(self.node.settings.run_dir, pod.statuses[container].id)
        return [(card.uuid, card.memory // MIB, card.cores) for card in claim.cards]

    def answered(self, name: str, key: str, value: str) -> None:
        def answer() -> bool:
            return bool(self.server.pod(name)["metadata"]["annotations"].get(key) == value)

        wait_for(answer, 120, f"{key} is not {value}: {self.plugin.text()}")


@pytest.fixture
def make_site(tmp_path: Path, base_trees: dict[str, Path]) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**settings: object) -> Site:
        made.append(Site(tmp_path, base_trees["debian"], **settings))
        return made[-1]

    yield make
    for site in made:
        site.end()


def hami(*parts: str) -> dict[str, str]:
    value = "".join(f"{part};" for part in parts)
    return {
        "hami.io/vgpu-node": NODE, "hami.io/vgpu-time": "1716199325", "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1716199325", "hami.io/vgpu-devices-to-allocate": value,
        "hami.io/vgpu-devices-allocated": value,
    }  # fmt: skip


def vgpu(mib: int, cores: int, name: str = "main") -> Container:
    return Container(name, {GPU: 1, GPUMEM: mib, GPUCORES: cores})


def test_hamis_lookalikes_get_the_cards_and_amounts_chosen_for_each(make_site: Callable[..., Site]) -> None:
    """Every other pod is on the other card, against the preference of binpack and of the device ids."""
    site = make_site(**HAMI_MODE)
    site.server.annotate_node(NODE, **{"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p0"})
    placed = {}
    for number in range(6):
        card = site.cards[(number + 1) % 2]
        annotations = hami("", f"{card},NVIDIA,{3000 + number},15:")
        containers = [Container("idle"), vgpu(3000 + number, 15)]
        placed[f"p{number}"] = (card, 3000 + number, site.run(f"p{number}", containers, annotations))
    for name, (card, mib, pod) in placed.items():
        assert site.held(pod) == [(card, mib, 15)]
        site.answered(name, "hami.io/bind-phase", "success")
        site.answered(name, "hami.io/vgpu-devices-to-allocate", ";;")
    assert "hami.io/mutex.lock" not in site.server.annotations(NODE)
    assert site.cards[0] in site.server.annotations(NODE)["hami.io/node-nvidia-register"]


def test_a_forged_amount_never_starts(make_site: Callable[..., Site]) -> None:
    site = make_site(**HAMI_MODE)
    forged = hami(f"{site.cards[0]},NVIDIA,30000,90:")
    pod = site.run("p", [vgpu(3000, 15)], forged)
    wait_for(lambda: any("expected at most" in line for line in pod.events), 60, f"{pod.events}")
    assert "annotation hami.io/vgpu-devices-allocated: cores: expected at most 15" in pod.events[-1]
    assert not pod.statuses["main"].started
    assert site.held(site.run("q", [vgpu(30000, 90)], forged), "main") == [
        (site.cards[0], 30000, 90)
    ]  # its spec has this amount


def test_an_init_container_its_successor_and_their_restarts(make_site: Callable[..., Site]) -> None:
    """They are known by name, on one card without room for both. After the node's reboot they run once more."""
    site = make_site()
    amounts = {CORE: 60, MEMORY: 4}
    card = site.cards[1]
    annotations = {"vgpu.io/placement": f"init={card};main={card}", "vgpu.io/placement-node": NODE}
    pod = site.run("p", [Container("main", dict(amounts))], annotations, [Container("init", dict(amounts), ["true"])])
    assert site.held(pod) == [(card, 1024, 60)]
    site.answered("p", "vgpu.io/assigned", "true")
    site.kubelet.power_off()
    site.plugin.kill()
    site.kubelet.start()
    site.plugin.start()
    site.kubelet.ready(CORE, MEMORY).resume()
    assert site.held(pod) == [(card, 1024, 60)]
    assert pod.statuses["init"].started == 2


def test_gpu_admissions_card_indexes(make_site: Callable[..., Site]) -> None:
    site = make_site()
    told = {
        "tencent.com/predicate-node": NODE,
        "tencent.com/gpu-assigned": "false",
        "tencent.com/predicate-gpu-idx-1": "1",
    }
    pod = site.run("p", [Container("idle"), Container("main", {CORE: 30, MEMORY: 4})], told)
    assert site.held(pod) == [(site.cards[1], 1024, 30)]
    site.answered("p", "tencent.com/gpu-assigned", "true")


def test_a_copied_pods_event_has_the_reason_why_it_does_not_start(make_site: Callable[..., Site]) -> None:
    site = make_site()
    told = {"tencent.com/predicate-node": "elsewhere", "tencent.com/predicate-gpu-idx-0": "1"}
    pod = site.run("p", [Container("main", {CORE: 30, MEMORY: 4})], told)
    wait_for(lambda: any("expected this node, testnode" in line for line in pod.events), 60, f"{pod.events}")
    wait_for(lambda: site.server.events, 50, "no event")
    assert "tencent.com/predicate-node" in site.server.events[0]["message"]


def test_records_end_with_their_pods(make_site: Callable[..., Site]) -> None:
    site = make_site()
    pod = site.run("p", [Container("main", {CORE: 30, MEMORY: 4})], {})
    site.held(pod)
    assert pods.uids(site.node.settings.run_dir) == [pod.uid]
    site.server.remove_pod("p")
    wait_for(lambda: not pods.uids(site.node.settings.run_dir), 50, "the record stays")

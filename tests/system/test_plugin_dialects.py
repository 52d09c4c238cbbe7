"""Pods that a scheduler has placed: API server, device plugin, kubelet's stand-in, runc, the hook, and the answers.

The API server is a fake over real HTTP, with the annotations that HAMi, gpu-admission and vgpu's own extender write.
The tests check what the containers hold in the end, and the annotations that the schedulers read.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import pytest
from container_site import MIB
from daemons import wait_for
from fake_apiserver import FakeApiServer
from kubelet import Container, Pod
from kubelet_runtimes import RuncRuntime
from pod_site import CORE, GPU, MEMORY, PodSite, plugin_settings, short_directory

pytestmark = pytest.mark.root

NODE = "testnode"
GPUMEM, GPUCORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
IGNORED = (GPUMEM, GPUCORES)  #: resources of the extender's own, which kubelet does not know
HAMI_MODE = {"resources.mode": "gpu", "resources.split_count": 10, "kubernetes.register": ["vgpu", "hami"]}


class ApiSite(PodSite):
    """A node in a cluster, whose containers runc runs."""

    def __init__(self, directory: Path, rootfs: Path, **settings: object) -> None:
        self.server = FakeApiServer()
        self.server.put_node(NODE)
        self.sockets = short_directory()
        access = {"kubernetes.api": "always", "kubernetes.kubeconfig": self.server.kubeconfig(directory / "kubeconfig")}
        values = plugin_settings(self.sockets, **access, **settings)
        node = nodes.SimulatedNode(directory / "node", "a100x2", **values)
        node.take_inventory()
        self.cards = [card["uuid"] for card in node.read_cards()]
        super().__init__(node, RuncRuntime(directory / "runc", node, rootfs), self.sockets)
        self.start()
        wait_for(self.server.watching, 120, self.plugin.text())

    def end(self) -> None:
        super().end()
        self.server.close()
        self.runtime.end()
        shutil.rmtree(self.sockets)

    def bound(self, name: str, containers: list[Container], annotations: dict[str, str], *inits: Container) -> Pod:
        """Run a pod that its scheduler has bound: the API server gets it first, then kubelet."""
        limits: dict[str, dict[str, object]] = {}
        for container in [*inits, *containers]:
            limits[container.name] = {key: str(amount) for key, amount in container.limits.items()}
            container.limits = {key: amount for key, amount in container.limits.items() if key not in IGNORED}
        init = tuple(container.name for container in inits)
        uid = str(uuid.uuid4())
        self.server.put_pod(name, NODE, uid, limits, annotations, init=init)
        return self.run(*containers, inits=list(inits), annotations=annotations, name=name, uid=uid)

    def has(self, pod: Pod, container: str = "main") -> list[tuple[str, int, int]]:
        """(card, MiB, cores) of a container that runs."""
        wait_for(lambda: pod.statuses[container].running, 60, lambda: f"{pod.phase} {pod.message} {pod.events}")
        return [(card.uuid, card.memory // MIB, card.cores) for card in self.claim(pod, container).cards]

    def answered(self, name: str, key: str, value: str) -> None:
        def answer() -> bool:
            return bool(self.server.pod(name)["metadata"]["annotations"].get(key) == value)

        wait_for(answer, 120, lambda: f"{key} is not {value}: {self.plugin.text()}")


@pytest.fixture
def make_site(tmp_path: Path, base_trees: dict[str, Path]) -> Iterator[Callable[..., ApiSite]]:
    made: list[ApiSite] = []

    def make(**settings: object) -> ApiSite:
        made.append(ApiSite(tmp_path, base_trees["debian"], **settings))
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


def test_hamis_lookalikes_get_the_cards_and_amounts_chosen_for_each(make_site: Callable[..., ApiSite]) -> None:
    """Every other pod is on the other card, against the preference of binpack and of the device ids."""
    site = make_site(**HAMI_MODE)
    site.server.annotate_node(NODE, **{"hami.io/mutex.lock": "2024-05-20T10:02:05Z,default,p0"})
    placed = {}
    for number in range(6):
        card = site.cards[(number + 1) % 2]
        annotations = hami("", f"{card},NVIDIA,{3000 + number},15:")
        containers = [Container("idle"), vgpu(3000 + number, 15)]
        placed[f"p{number}"] = (card, 3000 + number, site.bound(f"p{number}", containers, annotations))
    for name, (card, mib, pod) in placed.items():
        assert site.has(pod) == [(card, mib, 15)]
        site.answered(name, "hami.io/bind-phase", "success")
        site.answered(name, "hami.io/vgpu-devices-to-allocate", ";;")
    assert "hami.io/mutex.lock" not in site.server.annotations(NODE)
    assert site.cards[0] in site.server.annotations(NODE)["hami.io/node-nvidia-register"]


def test_an_init_container_its_successor_and_their_restarts(make_site: Callable[..., ApiSite]) -> None:
    """They are known by name, on one card without room for both. After the node's reboot they run once more."""
    site = make_site()
    amounts = {CORE: 60, MEMORY: 4}
    card = site.cards[1]
    annotations = {"vgpu.io/placement": f"init={card};main={card}", "vgpu.io/placement-node": NODE}
    pod = site.bound("p", [Container("main", dict(amounts))], annotations, Container("init", dict(amounts), ["true"]))
    assert site.has(pod) == [(card, 1024, 60)]
    site.answered("p", "vgpu.io/assigned", "true")
    site.power_off()
    site.start().kubelet.resume()
    assert site.has(pod) == [(card, 1024, 60)]
    assert pod.statuses["init"].started == 2

"""A node with kubelet's stand-in, the device plugin and a container runtime: from a pod's limits to its container.

Belongs here: the plugin's settings for such a node, its processes, pods with shares, and what a pod's user sees. Only
kubelet and the GPU are simulated. A node of a real cluster is in cluster_site.py.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodes
import yaml
from checkout import CHECKOUT
from container_site import GIB, MIB, pairs
from daemons import wait_for
from kubelet import FAILED, Container, Kubelet, Pod, Spec
from kubelet_devices import Options
from kubelet_runtimes import CriRuntime
from plugin_process import Plugin

from vgpu.config.claims import Claim

CORE, MEMORY, GPU = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "nvidia.com/gpu"
UNIT = 256 * MIB  #: of MEMORY
WHOLE = 40 * GIB - 576 * MIB  #: of a simulated A100, without what its driver keeps
LOOK = ["sh", "-c", "cudaprobe info; sleep 86400"]
EXAMPLES = CHECKOUT / "packaging/kubernetes/examples"
#: Resources of the fork, whose memory is in MiB.
FORK: dict[str, object] = {
    "resources.core_name": "nvidia.com/vcuda-core", "resources.memory_name": "nvidia.com/vcuda-memory",
    "resources.memory_unit": MIB,
}  # fmt: skip
VGPUS: dict[str, object] = {"resources.mode": "gpu", "resources.split_count": 2}
#: The shipped pods: the node's settings for each, and (MiB, cores, core limit) of each container's cards.
SHIPPED: dict[str, tuple[dict[str, object], dict[str, list[tuple[int, int, int]]]]] = {
    "third-of-a-card": ({}, {"nginx": [(5120, 30, 30)]}),
    "one-card": ({}, {"gpu": [(WHOLE // MIB, 100, 100)]}),
    "half-a-card": (FORK, {"nvidia": [(2048, 50, 50)]}),
    "two-cards": (FORK, {"nvidia": [(WHOLE // MIB, 100, 100)] * 2}),
    "two-containers": (FORK, {"c0": [(1000, 20, 20)], "c1": [(2000, 20, 20)]}),
    "two-vgpus": (VGPUS, {"ubuntu-container": [(WHOLE // MIB // 2, 50, 50)] * 2}),
}


def short_directory() -> Path:
    """A socket's path is at most 107 characters long."""
    return Path(tempfile.mkdtemp(prefix="vgpu-"))


def plugin_settings(sockets: Path, **more: object) -> dict[str, object]:
    """Of a plugin whose kubelet has its sockets below `sockets`, without API server and listeners."""
    usual = {
        "plugin.socket_dir": str(sockets / "device-plugins"),
        "plugin.pod_resources_socket": str(sockets / "pod-resources/kubelet.sock"),
        "plugin.http": "", "metrics.listen": "", "kubernetes.api": "never",
    }  # fmt: skip
    return {**usual, **more}


class GatedRuntime(CriRuntime):
    """containerd. Containers start only while `gate` is set. Kubelets before 1.29 do not pass CDI devices on."""

    def __init__(self, bed: Any, handler: str = "base") -> None:
        super().__init__(bed, handler)
        self.gate = threading.Event()
        self.gate.set()
        self.passes_devices = True

    def start(self, sandbox: Any, container: Container, options: Options) -> str:
        self.gate.wait(60)
        if not self.passes_devices:
            options.cdi = []
        return super().start(sandbox, container, options)


class PodSite:
    """The chain on one node. `run` and the queries speak of pods; `offer` changes the plugin's settings."""

    def __init__(self, node: nodes.SimulatedNode, runtime: Any, sockets: Path, **times: float) -> None:
        self.node, self.runtime = node, runtime
        self.kubelet = Kubelet(sockets, runtime, **times)
        self.plugin = Plugin(node)

    def start(self) -> PodSite:
        self.kubelet.start()
        self.plugin.start()
        return self.ready()

    @property
    def resources(self) -> tuple[str, ...]:
        settings = self.node.settings
        if settings.text("resources.mode") == "gpu":
            return (settings.text("resources.gpu_name"),)
        return settings.text("resources.core_name"), settings.text("resources.memory_name")

    def ready(self) -> PodSite:
        """Wait until kubelet has the plugin's resources."""
        try:
            self.kubelet.ready(*self.resources)
        except AssertionError:
            raise AssertionError(self.plugin.text()) from None
        return self

    def offer(self, **settings: object) -> PodSite:
        self.node.change_settings(**settings)
        return self.ready()

    def power_off(self) -> None:
        """All containers, kubelet and the plugin end at once. A plugin that lived on would see that kubelet is away and
        that the pods' cgroups are gone, in the boot that stands in the grants, which proves that the pods are over.
        """
        self.plugin.kill()
        self.kubelet.power_off()

    def end(self) -> None:
        if isinstance(self.runtime, GatedRuntime):
            self.runtime.gate.set()
        self.plugin.kill()
        self.kubelet.end()

    # Pods

    def run(self, *containers: Container, **fields: Any) -> Pod:
        """A pod that kubelet has, whatever becomes of it."""
        return self.kubelet.run(Spec(list(containers), **fields))

    def runs(self, *containers: Container, **fields: Any) -> Pod:
        return runs(self.run(*containers, **fields))

    def claim(self, pod: Pod, container: str = "c") -> Claim:
        return self.node.claim(pod.statuses[container].id)

    def held(self) -> dict[str, int]:
        """The sum of the cores in living containers' claims, per card."""
        total: dict[str, int] = {}
        for container in self.node.claims():
            for card in self.node.claim(container).cards:
                total[card.uuid] = total.get(card.uuid, 0) + card.cores
        return total

    def seen(self, pod: Pod, container: str = "c") -> dict[str, str]:
        """The container's output, as soon as there is any."""
        attempt = self.runtime._attempts[pod.statuses[container].id]
        wait_for(lambda: "nvml_total" in pod.sandbox.output(attempt), 120, "the container prints nothing")
        return pairs(pod.sandbox.output(attempt))

    def checked(self, pod: Pod, container: str, cards: list[tuple[int, int, int]]) -> Claim:
        """The container's claim: it is the pod's, has these cards of (MiB, cores, core limit), and its output too."""
        claim = self.claim(pod, container)
        assert claim.holder is not None
        assert (claim.holder.pod_uid, claim.holder.container) == (pod.uid, container)
        assert claim.exclusive == all(cores == 100 for _, cores, _ in cards)
        assert len({card.uuid for card in claim.cards}) == len(claim.cards)
        found = self.seen(pod, container)
        assert found["cards"] == str(len(cards)) == str(len(claim.cards))
        for number, (card, (mib, cores, limit)) in enumerate(zip(claim.cards, cards)):
            assert (card.cores, card.core_limit) == (cores, limit)
            if not claim.exclusive:  # a whole card has no limit
                assert card.memory == mib * MIB
                assert {found[f"card{number}.total"], found[f"card{number}.nvml_total"]} == {str(card.memory)}
        return claim

    def checked_card(self, pod: Pod, cores: int, units: int, container: str = "c") -> str:
        """The card of a container with a share."""
        return self.checked(pod, container, [(units * UNIT // MIB, cores, cores)]).cards[0].uuid

    def run_example(self, name: str) -> Pod:
        """Its images are the bed's, and its commands print what they see."""
        (document,) = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
        wanted = [
            Container(one["name"], {key: int(value) for key, value in one["resources"]["limits"].items() if "/" in key},
                      LOOK)
            for one in document["spec"]["containers"]
        ]  # fmt: skip
        metadata = document["metadata"]
        return self.run(*wanted, annotations=metadata.get("annotations", {}), name=metadata["name"])

    def check_example(self, name: str, check: Callable[[Claim], object] = bool) -> None:
        """Its containers have what SHIPPED says."""
        pod = runs(self.run_example(name))
        for container, cards in SHIPPED[name][1].items():
            check(self.checked(pod, container, cards))
        self.kubelet.delete(pod)
        assert self.node.claims() == {}, "poststop has released them"


def share(cores: int, units: int, name: str = "c", command: list[str] = LOOK) -> Container:
    return Container(name, {CORE: cores, MEMORY: units}, command)


def runs(pod: Pod, seconds: float = 60) -> Pod:
    wait_for(lambda: pod.running or pod.phase == FAILED, seconds, lambda: f"{pod.phase} {pod.message} {pod.events}")
    assert pod.running, f"{pod.message} {pod.events}"
    return pod


def ends(pod: Pod, seconds: float = 60) -> Pod:
    wait_for(lambda: pod.phase == "Succeeded", seconds, lambda: f"{pod.phase} {pod.message} {pod.events}")
    return pod


def event(pod: Pod, text: str, seconds: float = 30) -> str:
    """The first event of a pod with `text`."""
    wait_for(lambda: any(text in line for line in pod.events), seconds, lambda: f"no {text!r} in {pod.events}")
    return next(line for line in pod.events if text in line)


def forget(node: nodes.SimulatedNode) -> None:
    """The next test has a node of its own. No vgpud is here: a claim ends with its poststop."""
    left = {name: record for name, record in node.claims().items() if record}
    for path in (Path(node.settings.state_dir, "grants"), node.containers):
        shutil.rmtree(path, ignore_errors=True)
    assert left == {}, "every claim has ended with its container"

"""From a pod's limits to its container by CDI alone: kubelet's stand-in, the plugin, containerd 1.7 and 2.1.

No runtime handler calls the hook, and no annotation is passed on: `vgpuctl cdi generate` and `plugin.cdi` are all that
is configured. kubelet passes the device on in one of two ways: as kubelets from 1.29 on do, by the answer's field and
the annotation, or as older ones do, which ignore the field.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import containerd_bed
import nodes
import oci_images
import pytest
import suites
import yaml
from checkout import CHECKOUT
from containerd_bed import Containerd
from cri_client import CriError
from daemons import wait_for
from kubelet import FAILED, Container, Kubelet, Pod, Spec
from kubelet_devices import Options
from kubelet_runtimes import CriRuntime
from plugin_process import Plugin

from vgpu.config import cdi_device, claims, grants, paths
from vgpu.config.claims import Claim
from vgpu.config.grants import Grant

pytestmark = pytest.mark.root

SUITES = {"1.7": "trixie", "2.1": "sid"}
MIB = 1 << 20
WHOLE = 40 << 30  #: bytes of a simulated A100
EXAMPLES = CHECKOUT / "packaging/kubernetes/examples"
#: Resources of the fork, whose memory is in MiB.
FORK: dict[str, object] = {
    "resources__core_name": "nvidia.com/vcuda-core",
    "resources__memory_name": "nvidia.com/vcuda-memory",
    "resources__memory_unit": MIB,
}
LOOK = ["sh", "-c", "cudaprobe info; sleep 86400"]


class AnyKubelet(CriRuntime):
    """containerd under a kubelet that passes CDI devices on, or under one that ignores them."""

    def __init__(self, bed: Containerd) -> None:
        super().__init__(bed, "plain")
        self.passes_devices = True

    def start(self, sandbox: Any, container: Container, options: Options) -> str:
        if not self.passes_devices:
            options.cdi = []
        return super().start(sandbox, container, options)


class Site:
    """A node with kubelet's stand-in, the plugin and containerd."""

    def __init__(self, node: nodes.SimulatedNode, bed: Containerd) -> None:
        self.node, self.bed = node, bed
        self.runtime = AnyKubelet(bed)
        self.kubelet = Kubelet(node.directory / "kubelet", self.runtime)
        self.plugin = Plugin(node)

    def start(self) -> Site:
        self.kubelet.start()
        self.plugin.start()
        return self.offer()

    def offer(self, **settings: object) -> Site:
        """Settings that are in force when kubelet has their resources."""
        self.node.settings._values.update({name.replace("__", "."): value for name, value in settings.items()})
        self.node.write_settings()
        self.kubelet.ready(*self.resources())
        return self

    def resources(self) -> tuple[str, ...]:
        settings = self.node.settings
        if settings.text("resources.mode") == "gpu":
            return (settings.text("resources.gpu_name"),)
        return settings.text("resources.core_name"), settings.text("resources.memory_name")

    def end(self) -> None:
        self.plugin.kill()
        self.kubelet.end()

    def grants(self) -> list[Grant]:
        return grants.read_all(self.node.settings.state_dir)[0]

    def claims(self) -> dict[str, Claim]:
        """Container -> its claim."""
        run = self.node.settings.run_dir
        names = [path.parent.name for path in Path(run).glob("containers/*/claim.json")]
        return {name: claims.read(run, name) for name in names}

    def hooks(self, container: str) -> list[str]:
        """The programs of the hooks in the config.json of a container that runs."""
        (found,) = self.bed.directory.glob(f"state/*/k8s.io/{container}/config.json")
        stages = json.loads(found.read_text()).get("hooks") or {}
        return [hook["path"] for entries in stages.values() for hook in entries]

    def hook_log(self) -> list[str]:
        path = Path(paths.hook_log(self.node.settings.run_dir))
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def image(base_trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("image") / "base.tar"
    return oci_images.write(base_trees["debian"], archive, containerd_bed.IMAGE, ["sleep", "86400"])


@pytest.fixture(scope="module", params=SUITES)
def site(request: pytest.FixtureRequest, image: Path) -> Iterator[Site]:
    """A node whose only configuration for vgpu is CDI: what `vgpuctl cdi generate` writes, and plugin.cdi."""
    version = request.param
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgpu-")))
        sockets = directory / "node/kubelet"
        settings = {
            "plugin.socket_dir": str(sockets / "device-plugins"),
            "plugin.pod_resources_socket": str(sockets / "pod-resources/kubelet.sock"),
            "plugin.cdi": True,
            "plugin.http": "",
            "metrics.listen": "",
            "kubernetes.api": "never",
        }
        node = nodes.SimulatedNode(directory / "node", "a100x2", **settings)
        node.take_inventory()
        bed = Containerd(directory / "bed", suites.unpack(SUITES[version], "containerd") / "usr/bin", node, patterns=())
        assert bed.version.startswith(version)
        stack.callback(bed.stop)
        bed.start(image)
        made = bed.directory / "cdi"
        (made / "vgpu.json").unlink()
        node.vgpuctl(
            "cdi", "generate", "--directory", str(made), "--programs", str(node.hook.parent), "--beside-others"
        )
        one = Site(node, bed)
        stack.callback(one.end)
        yield one.start()


def runs(site: Site, spec: Spec) -> Pod:
    pod = site.kubelet.run(spec)
    wait_for(lambda: pod.running or pod.phase == FAILED or pod.events, 60, site.plugin.text)
    assert pod.running, f"{pod.message} {pod.events}"
    return pod


def seen(site: Site, pod: Pod, container: str) -> dict[str, str]:
    """What the container printed of its cards."""
    attempt = site.runtime._attempts[pod.statuses[container].id]
    wait_for(lambda: "nvml_total" in pod.sandbox.output(attempt), 60, "the container prints nothing")
    return dict(line.split(" ", 1) for line in pod.sandbox.output(attempt).splitlines() if " " in line)


def gpu_limits(limits: dict[str, str]) -> dict[str, int]:
    return {key: int(value) for key, value in limits.items() if "/" in key}


def example(name: str) -> Spec:
    """A pod of the seeds, with the bed's image and a program that prints what it sees."""
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    wanted = [
        Container(one["name"], gpu_limits(one["resources"]["limits"]), LOOK) for one in document["spec"]["containers"]
    ]
    return Spec(wanted, annotations=document["metadata"].get("annotations", {}), name=document["metadata"]["name"])


def check_example(site: Site, name: str) -> None:
    """Its containers have what their limits say, and each has the hook once, although several answers named it."""
    core, memory, unit = (site.node.settings[f"resources.{key}"] for key in ("core_name", "memory_name", "memory_unit"))
    spec = example(name)
    pod = runs(site, spec)
    for container in spec.containers:
        claim = site.claims()[pod.statuses[container.name].id]
        assert claim.holder is not None
        assert (claim.holder.pod_uid, claim.holder.container) == (pod.uid, container.name)
        cores, amount = container.limits[str(core)], container.limits.get(str(memory), 0) * int(str(unit))
        found = seen(site, pod, container.name)
        assert found["cards"] == str(max(1, cores // 100)) == str(len(claim.cards))
        assert claim.exclusive == (cores >= 100)
        if not claim.exclusive:
            (card,) = claim.cards
            assert (card.cores, card.memory) == (cores, amount)
            assert {found["card0.total"], found["card0.nvml_total"]} == {str(amount)}
        assert site.hooks(claim.container) == [str(site.node.hook)] * 2, "createRuntime and poststop"
    site.kubelet.delete(pod)
    assert site.claims() == {}, "poststop has released them"


def test_a_kubelet_that_ignores_cdi_devices(site: Site) -> None:
    site.runtime.passes_devices = False
    check_example(site, "third-of-a-card")
    site.runtime.passes_devices = True


def test_other_containers_never_meet_the_hook(site: Site) -> None:
    """Neither a pod's sandbox nor a container without a share has a hook, so they cost nothing."""
    before = site.hook_log()
    pod = runs(site, Spec([Container("plain")]))
    assert site.hooks(pod.statuses["plain"].id) == site.hooks(pod.sandbox.id) == []
    site.kubelet.delete(pod)
    assert site.hook_log() == before


def test_who_names_the_device_gets_no_card(site: Site) -> None:
    """By an annotation or the field, with amounts of its own or a stolen grant; and with a grant's id as the device."""
    core, memory = site.resources()
    victim = runs(site, Spec([Container("c", {core: 30, memory: 4}, LOOK)]))
    stolen = [(grants.ENVIRONMENT[grant.resource], grant.id) for grant in site.grants() if grant.holder]
    amounts = {"vgpu.io/cores": "100", "vgpu.io/memory": "1Gi"}
    thief = site.bed.pod("plain", annotations=amounts)
    for named, devices in (({"cdi.k8s.io/mine": cdi_device.DEVICE}, []), ({}, [cdi_device.DEVICE])):
        fields: dict[str, Any] = {"annotations": {**amounts, **named}, "cdi_devices": devices}
        script = "ls /dev; cat /proc/self/mountinfo; sleep 86400"
        container = thief.create(["sh", "-c", script], **fields)
        thief.start(container)
        assert site.hooks(container) == [str(site.node.hook)] * 2
        wait_for(lambda: "/proc" in thief.output(), 60, "the container prints nothing")
        assert "nvidia" not in thief.output()
        with pytest.raises(CriError, match=victim.uid):
            thief.start(thief.create(["true"], env=stolen, **fields))
    with pytest.raises(CriError, match="unresolvable CDI devices"):
        thief.create(["true"], cdi_devices=[f"{cdi_device.KIND}={stolen[0][1]}"])
    assert set(site.claims()) == {victim.statuses["c"].id}
    site.kubelet.delete(victim)
    site.bed.remove_pods()


def test_beside_another_registration_the_second_run_does_nothing(site: Site) -> None:
    """The hook is in the base specification, too. Both runs are in the log, and the container has its share once."""
    core, memory = site.resources()
    before = len(site.hook_log())
    site.runtime.handler = "base"
    pod = runs(site, Spec([Container("c", {core: 30, memory: 4}, LOOK)]))
    site.runtime.handler = "plain"
    assert site.hooks(pod.statuses["c"].id) == [str(site.node.hook)] * 4
    (claim,) = site.claims().values()
    assert seen(site, pod, "c")["card0.total"] == str(claim.cards[0].memory)
    assert ["holds its cards already" in line for line in site.hook_log()[before:]] == [False, True]
    site.kubelet.delete(pod)
    assert site.claims() == {}


def test_the_example_pods(site: Site) -> None:
    """It leaves the fork's resources."""
    for name in ("third-of-a-card", "one-card"):
        check_example(site, name)
    site.offer(**FORK)
    for name in ("half-a-card", "two-cards", "two-containers"):
        check_example(site, name)


def test_two_vgpus(site: Site) -> None:
    """The last test: it leaves vGPUs, two of each card. A pod with two has half of each card."""
    site.offer(resources__mode="gpu", resources__split_count=2)
    spec = example("two-vgpus")
    pod = runs(site, spec)
    (wanted,) = spec.containers
    claim = site.claims()[pod.statuses[wanted.name].id]
    assert claim.holder is not None
    assert (claim.holder.pod_uid, claim.holder.container) == (pod.uid, wanted.name)
    assert len({card.uuid for card in claim.cards}) == len(claim.cards) == 2
    found = seen(site, pod, wanted.name)
    assert found["cards"] == "2"
    for number, card in enumerate(claim.cards):
        assert (card.cores, card.memory) == (50, WHOLE // 2)
        assert {found[f"card{number}.total"], found[f"card{number}.nvml_total"]} == {str(card.memory)}
    assert site.hooks(claim.container) == [str(site.node.hook)] * 2, "createRuntime and poststop"
    site.kubelet.delete(pod)
    assert site.claims() == {}

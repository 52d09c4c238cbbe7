"""Containers with resource claims: containerd 2.1 over CRI with CDI, the hook, the plugin, kubelet's stand-in."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import containerd_bed
import nodes
import pytest
from container_site import GIB, MIB, pairs
from cri_client import CriError
from daemons import wait_for
from dra_kubelet import Call, Object, Pod
from dra_site import PATIENCE, DraSite, running

from vgpu.config import inventory

pytestmark = pytest.mark.root

LOOK = ["sh", "-c", "cudaprobe info; exec sleep 86400"]
ALLOC = ["sh", "-c", "cudaprobe alloc 250 20; exec sleep 86400"]
HOLD = ["sh", "-c", "cudaprobe hold 2000 /end; exec sleep 86400"]


class RuntimeSite(DraSite):
    """Pods have one container, which runs their annotation `command`."""

    def __init__(self, bed: containerd_bed.Containerd) -> None:
        super().__init__(bed.node, bed.directory / "cdi")
        self.bed = bed
        self.sandboxes: dict[str, containerd_bed.Pod] = {}
        self.commands: dict[str, list[str]] = {}
        self.containers: dict[str, str] = {}

    def run(self, claim: str, command: list[str]) -> Pod:
        name = f"p{len(self.commands)}"
        self.commands[name] = command
        return self.pod(claim, name)

    def run_part(self, part: str, command: list[str]) -> Pod:
        name = f"p{len(self.commands)}"
        self.commands[name] = command
        return self.part_pod(part, name)

    def started(self, pod: Pod, devices: dict[str, list[Object]]) -> None:
        super().started(pod, devices)
        sandbox = self.sandboxes[pod.uid] = self.bed.pod("plain", pod.uid)
        self.containers[pod.uid] = sandbox.create(
            self.commands[pod.object["metadata"]["name"]], cdi_devices=self.given[pod.uid]
        )
        sandbox.start(self.containers[pod.uid])

    def stopped(self, pod: Pod) -> None:
        if pod.uid in self.sandboxes:
            sandbox = self.sandboxes.pop(pod.uid)
            self.bed.pods.remove(sandbox)
            sandbox.remove()

    def seen(self, pod: Pod, text: str) -> dict[str, str]:
        """What the pod's container has printed, once `text` is in it."""
        self.until(lambda: pod.sandbox)
        sandbox = self.sandboxes[pod.uid]
        wait_for(lambda: text in sandbox.output(), 600, sandbox.output)
        return pairs(sandbox.output())


@pytest.fixture(scope="module")
def bed(image: Path) -> Iterator[containerd_bed.Containerd]:
    with tempfile.TemporaryDirectory(prefix="vgpu-") as name:
        node = nodes.SimulatedNode(Path(name) / "node", "t4x1")
        node.take_inventory()
        made = containerd_bed.Containerd(Path(name) / "bed", containerd_bed.programs("2.1"), node)
        yield made.start(image)
        made.stop()


@pytest.fixture
def site(bed: containerd_bed.Containerd) -> Iterator[RuntimeSite]:
    with running(RuntimeSite(bed)) as made:
        assert isinstance(made, RuntimeSite)
        made.start()
        made.until(made.published)
        yield made
        for pod in list(made.kubelet.pods.values()):
            made.delete(pod)
        made.until(lambda: not made.kubelet.checkpoint)
        assert (made.records(), made.node.claims()) == ({}, {})


def test_each_sees_its_consumed_capacity_and_the_fourth_waits(site: RuntimeSite) -> None:
    claims = [site.make_claim(f"c{number}", 30, f"{number + 2}Gi") for number in range(4)]
    pods = [site.run(claim, LOOK) for claim in claims]
    for number, pod in enumerate(pods[:3]):
        found = site.seen(pod, "nvml_total")
        assert {found["card0.total"], found["card0.nvml_total"]} == {str((number + 2) * GIB)}
        assert [card.cores for card in site.node.claim(site.containers[pod.uid]).cards] == [30]
    assert site.reasons == {pods[3].uid: "cannot allocate all claims"}
    site.delete(pods[0])
    assert site.seen(pods[3], "nvml_total")["card0.total"] == str(5 * GIB)
    site.settled()


def test_pods_on_one_claim_share_it_and_a_stranger_is_refused(site: RuntimeSite) -> None:
    """kubelet makes no call for the second pod. The third names the claim's device and has no reservation."""
    claim = site.make_claim("shared", 30, "4Gi")
    first = site.run(claim, HOLD)
    site.seen(first, "result 0")
    second = site.run(claim, ALLOC)
    found = site.seen(second, "refused")
    held = int(found["held"]) * 250 * MIB
    assert found["refused"] == "2"
    assert 0 < held <= 4 * GIB - 2000 * MIB
    stranger = site.bed.pod("plain")
    container = stranger.create(ALLOC, cdi_devices=site.given[first.uid])
    with pytest.raises(CriError, match="expected a reservation for the pod"):
        stranger.start(container)


def test_a_card_serves_a_half_or_shares(site: RuntimeSite) -> None:
    """The half is named as a resource of a device plugin would be, and the scheduler makes the claim."""
    half = site.run_part("half", LOOK)
    found = site.seen(half, "nvml_total")
    claim = site.node.claim(site.containers[half.uid])
    [card] = inventory.read(site.node.settings.run_dir).cards
    assert [(one.cores, one.memory) for one in claim.cards] == [(50, card.memory // 2)]
    assert found["card0.total"] == str(card.memory // 2)
    share = site.run(site.make_claim("small", 10, "1Gi"), LOOK)
    assert site.reasons == {share.uid: "cannot allocate all claims"}
    site.delete(half)
    assert site.seen(share, "nvml_total")["card0.total"] == str(GIB)


def test_a_share_that_was_freed_by_force_is_waited_for(site: RuntimeSite) -> None:
    """The scheduler gives it to the next pod before kubelet unprepares the claim. Here that comes only after the next
    pod's first start has been refused, however long the start waits; kubelet starts it again."""
    old = site.run(site.make_claim("old", 80, "4Gi"), HOLD)
    site.seen(old, "result 0")
    new = site.run(site.make_claim("new", 80, "4Gi"), HOLD)
    refused, running_pods, may_end, [instance] = list[str](), list[Pod](), threading.Event(), site.instances
    serve, start = instance.serve, site.started

    def late(call: Call) -> tuple[Object | None, str]:
        assert "Unprepare" not in call.method or may_end.wait(PATIENCE)
        return serve(call)

    def again(pod: Pod, devices: dict[str, list[Object]]) -> None:
        while pod not in running_pods:
            try:
                start(pod, devices)
                running_pods.append(pod)
            except CriError as error:
                refused.append(str(error))
                site.stopped(pod)

    with ThreadPoolExecutor() as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance, "serve", late)
        patch.setattr(site, "started", functools.partial(threads.submit, again))
        site.delete(old, by_force=True)
        site.until(lambda: refused or running_pods)
        may_end.set()
        assert refused and "default/old" in refused[0]
        site.until(lambda: running_pods)
    site.seen(new, "result 0")
    site.settled()


def test_a_container_starts_again_after_its_device_was_lost(site: RuntimeSite) -> None:
    """/var/run/cdi is emptied while the plugin is away. While the pod lives kubelet makes no call."""
    pod = site.run(site.make_claim("lost", 30, "4Gi"), HOLD)
    site.seen(pod, "result 0")
    site.kill(site.instances[0])
    site.empty_cdi()
    sandbox = site.sandboxes[pod.uid]
    sandbox.stop_container(site.containers[pod.uid])
    with pytest.raises(CriError, match="unresolvable CDI devices"):
        sandbox.create(HOLD, cdi_devices=site.given[pod.uid])
    site.start()
    site.settled()
    sandbox.start(sandbox.create(HOLD, cdi_devices=site.given[pod.uid]))
    wait_for(lambda: "result 0" in sandbox.output(), 600, sandbox.output)

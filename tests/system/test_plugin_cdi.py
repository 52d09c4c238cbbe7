"""From a pod's limits to its container by CDI alone: kubelet's stand-in, the plugin, containerd 1.7 and 2.1.

No runtime handler calls the hook, and no annotation is passed on: `vgpuctl cdi generate` and `plugin.cdi` are all that
is configured. kubelet passes the device on in one of two ways: as kubelets from 1.29 on do, by the answer's field and
the annotation, or as older ones do, which ignore the field.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nodes
import pytest
from containerd_bed import Containerd, programs
from cri_client import CriError
from daemons import wait_for
from kubelet import Container
from pod_site import SHIPPED, GatedRuntime, PodSite, plugin_settings, share, short_directory

from vgpu.config import cdi_device, grants
from vgpu.config.claims import Claim

pytestmark = pytest.mark.root


class CdiSite(PodSite):
    """A node whose only configuration for vgpu is CDI: what `vgpuctl cdi generate` writes, and plugin.cdi."""

    def __init__(self, directory: Path, version: str, image: Path) -> None:
        sockets = directory / "node/kubelet"
        node = nodes.SimulatedNode(directory / "node", "a100x2", **plugin_settings(sockets, **{"plugin.cdi": True}))
        node.take_inventory()
        self.bed = Containerd(directory / "bed", programs(version), node, patterns=()).start(image)
        assert self.bed.version.startswith(version)
        made = self.bed.directory / "cdi"
        (made / "vgpu.json").unlink()
        names = ("--directory", str(made), "--programs", str(node.hook.parent), "--beside-others")
        node.vgpuctl("cdi", "generate", *names)
        super().__init__(node, GatedRuntime(self.bed, "plain"), sockets)

    def hooks(self, container: str) -> list[str]:
        """The programs of the hooks in the config.json of a container that runs."""
        (found,) = self.bed.directory.glob(f"state/*/k8s.io/{container}/config.json")
        stages = json.loads(found.read_text()).get("hooks") or {}
        return [hook["path"] for entries in stages.values() for hook in entries]

    def has_the_hook_once(self, claim: Claim) -> None:
        """Although several answers named it."""
        assert self.hooks(claim.container) == [str(self.node.hook)] * 2, "createRuntime and poststop"


@pytest.fixture(scope="module", params=["1.7", "2.1"])
def site(request: pytest.FixtureRequest, image: Path) -> Iterator[CdiSite]:
    with ExitStack() as stack:
        directory = short_directory()
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        made = CdiSite(directory, request.param, image)
        stack.callback(made.bed.stop)
        stack.callback(made.end)
        made.start()
        yield made


def test_a_kubelet_that_ignores_cdi_devices(site: CdiSite) -> None:
    site.runtime.passes_devices = False
    site.check_example("third-of-a-card", site.has_the_hook_once)
    site.runtime.passes_devices = True


def test_other_containers_never_meet_the_hook(site: CdiSite) -> None:
    """Neither a pod's sandbox nor a container without a share has a hook, so they cost nothing."""
    before = site.node.log()
    pod = site.runs(Container("plain"))
    assert site.hooks(pod.statuses["plain"].id) == site.hooks(pod.sandbox.id) == []
    site.kubelet.delete(pod)
    assert site.node.log() == before


def test_who_names_the_device_gets_no_card(site: CdiSite) -> None:
    """By an annotation or the field, with amounts of its own or a stolen grant; and with a grant's id as the device."""
    victim = site.runs(share(30, 4))
    stolen = [(grants.ENVIRONMENT[grant.resource], grant.id) for grant in site.node.grants() if grant.holder]
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
    assert set(site.node.claims()) == {victim.statuses["c"].id}
    site.kubelet.delete(victim)
    site.bed.remove_pods()


def test_beside_another_registration_the_second_run_does_nothing(site: CdiSite) -> None:
    """The hook is in the base specification, too. Both runs are in the log, and the container has its share once."""
    before = len(site.node.log())
    site.runtime.handler = "base"
    pod = site.runs(share(30, 4))
    site.runtime.handler = "plain"
    assert site.hooks(pod.statuses["c"].id) == [str(site.node.hook)] * 4
    site.checked_card(pod, 30, 4)
    assert ["holds its cards already" in str(line) for line in site.node.log()[before:]] == [False, True]
    site.kubelet.delete(pod)
    assert site.node.claims() == {}


def test_the_shipped_pods(site: CdiSite) -> None:
    """The last test: it leaves the resources of the last pod, which are vGPUs."""
    for name, (settings, _) in SHIPPED.items():
        site.offer(**settings)
        site.check_example(name, site.has_the_hook_once)

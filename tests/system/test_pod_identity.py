"""The pod of a container by its cgroup path: who it is under each of kubelet's runtimes, and when it is over.

The tests run runc's bundles with the paths and annotations of those runtimes, by the shim.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from pathlib import Path

import bundles
import pytest
from container_site import BOTH, GIB, Site

pytestmark = pytest.mark.root

CRI = "io.kubernetes.cri"
CRIO = "io.kubernetes.cri-o"

OLD = {f"{CRI}.container-type": "container", f"{CRI}.sandbox-id": "s"}
BY_CONTAINERD = {
    f"{CRI}.container-type": "container", f"{CRI}.sandbox-uid": "{uid}", f"{CRI}.container-name": "train",
    f"{CRI}.sandbox-namespace": "default", f"{CRI}.sandbox-name": "old",
}  # fmt: skip
BY_CRIO = {
    f"{CRIO}.ContainerType": "container", f"{CRIO}.SandboxID": "s", "io.kubernetes.pod.uid": "{uid}",
    "io.kubernetes.container.name": "train",
}  # fmt: skip
SLICE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice"

#: name -> (path below the test's cgroup, the runtime's annotations). A runtime whose annotations have the container's
#: name also passes the device plugin's on. {uid} is the pod's, {under} the same with underscores, as in slices' names.
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "containerd-1.4": ("kubepods/besteffort/pod{uid}/c1", OLD),
    "containerd-cgroupfs": ("kubepods/burstable/pod{uid}/c1", BY_CONTAINERD),
    "containerd-systemd": (f"{SLICE}/cri-containerd-c1.scope", BY_CONTAINERD),
    "containerd-wrong-driver": ("kubepods-besteffort-pod{under}.slice:cri-containerd:c1", {}),
    "crio-cgroupfs": ("kubepods/burstable/pod{uid}/crio-c1", BY_CRIO),
    "crio-systemd": ("kubepods.slice/kubepods-pod{under}.slice/crio-c1.scope", BY_CRIO),
    "docker-cgroupfs": ("kubepods/burstable/pod{uid}/c1", {}),
    "docker-systemd": (f"{SLICE}/docker-c1.scope", {}),
    "docker-static-pod": ("kubepods/pod0123456789abcdef0123456789abcdef/c1", {}),
}


@pytest.fixture
def site(site: Site) -> Site:
    """Its runtime is vgpu-runtime, as Docker's daemon.json names it."""
    site.runtime = site.other_runtime(str(site.node.shim), "--vgpu-config", str(site.node.config))
    return site


class Pod:
    """A pod of one container with these grants."""

    def __init__(self, site: Site, top: str, form: str = "containerd-cgroupfs", **amounts: int) -> None:
        self.site = site
        path, annotations = FORMS[form]
        own = str(uuid.uuid4())
        self.uid = own if "{" in path else path.split("/")[1][3:]
        self.path = f"{top}/{path.format(uid=own, under=own.replace('-', '_'))}"
        self.annotations = {key: value.format(uid=own) for key, value in annotations.items()}
        self.told = "train" if "train" in annotations.values() else ""
        self.grants = {name: site.node.grant(name, amount) for name, amount in amounts.items()}

    def bundle(self, tree: Path | None = None, *command: str) -> bundles.Bundle:
        made = self.site.plain_bundle(tree, *command)
        made.config["linux"]["cgroupsPath"] = self.path
        made.config["annotations"] = dict(self.annotations)
        if self.told:
            made.config["annotations"].update({f"vgpu.io/grant-{name}": id for name, id in self.grants.items()})
        made.config["process"]["env"] += [f"VGPU_GRANT_{name.upper()}={id}" for name, id in self.grants.items()]
        return made

    def directories(self) -> list[Path]:
        """The pod's cgroups, as kubelet's cgroupfs driver makes them."""
        found = [Path(f"{hierarchy}{os.path.dirname(self.path)}") for hierarchy in Path("/sys/fs/cgroup").iterdir()]
        return [path for path in found if path.is_dir()]

    def remove(self) -> None:
        """What kubelet does when the pod is over."""
        for top in self.directories():
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)


# Who it is


@pytest.mark.parametrize("form", FORMS)
def test_the_pod_is_identified(site: Site, cgroup: str, form: str) -> None:
    pod, tree = Pod(site, cgroup, form, cores=30, memory=GIB), site.tree()
    for _ in range(2):  # a restart claims again
        assert site.seen(pod.bundle(tree))["card0.total"] == str(GIB)
    for grant in site.node.grants():
        assert grant.holder is not None
        assert (grant.holder.pod_uid, grant.holder.container) == (pod.uid, pod.told)
    if form != "docker-static-pod":
        stranger = Pod(site, cgroup, form)
        stranger.grants = pod.grants
        assert pod.uid in site.refused(stranger.bundle(tree))


@pytest.mark.parametrize("key", [f"{CRI}.container-type", f"{CRIO}.ContainerType"])
def test_sandboxes_are_left_alone_unless_they_have_a_grant(site: Site, cgroup: str, key: str) -> None:
    """With a grant the type is forged: without a line the container would start without its share."""
    sandbox = Pod(site, cgroup).bundle()
    sandbox.config["annotations"].update({key: "sandbox", "vgpu.io/core-limit": "50"})
    assert "nvidia" not in site.output(sandbox, "ls", "/dev")
    assert "hooks" not in json.loads((sandbox.path / "config.json").read_text())
    forged = Pod(site, cgroup, cores=30, memory=GIB).bundle()
    forged.config["annotations"][key] = "sandbox"
    line = "container type: expected no sandbox, as the container has a grant, found sandbox"
    assert line in site.refused(forged)


@pytest.mark.parametrize("form", FORMS)
def test_a_pod_is_never_standalone(site: Site, cgroup: str, form: str) -> None:
    """Without grants it gets nothing, whatever its annotations request."""
    made = Pod(site, cgroup, form).bundle()
    made.config["annotations"].update({"vgpu.io/cores": "100", "vgpu.io/memory": "40Gi"})
    assert "nvidia" not in site.output(made, "ls", "/dev")


# When it is over


@BOTH
def test_whole_cards_after_a_share_whose_pod_is_over(site: Site, cgroup: str) -> None:
    """The container has ended and the pod's cgroup is empty: the next pod waits until kubelet has removed it."""
    tree = site.tree()
    share, whole = Pod(site, cgroup, cores=30, memory=GIB), Pod(site, cgroup, cores=200)
    site.output(share.bundle(tree))
    assert share.directories(), "runc has left the pod's cgroup to kubelet"
    refused = site.refused(whole.bundle(tree))
    assert "shared by default/old/train (30 cores, 1024 MiB)" in refused, "its sandbox may be made anew"
    timer = threading.Timer(0.3, share.remove)
    timer.start()
    started = time.monotonic()
    site.output(whole.bundle(tree))
    timer.join()
    assert time.monotonic() - started > 0.3
    assert not share.directories()
    site.output(whole.bundle(tree))  # its own grant is not in its way

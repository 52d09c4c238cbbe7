"""The pod of a container under each of kubelet's runtimes: by the cgroup path alone or with annotations too.

The tests run runc's bundles with the paths and annotations of those runtimes.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import bundles
import nodes
import pytest

pytestmark = pytest.mark.root

GIB = 1 << 30
MIB = 1 << 20
Rootfs = Callable[..., Path]
CRI = "io.kubernetes.cri"
CRIO = "io.kubernetes.cri-o"

OLD = {f"{CRI}.container-type": "container", f"{CRI}.sandbox-id": "s"}
BY_CONTAINERD = {
    f"{CRI}.container-type": "container",
    f"{CRI}.sandbox-uid": "{uid}",
    f"{CRI}.container-name": "train",
}
BY_CRIO = {
    f"{CRIO}.ContainerType": "container",
    f"{CRIO}.SandboxID": "s",
    "io.kubernetes.pod.uid": "{uid}",
    "io.kubernetes.container.name": "train",
}
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
def shim(tmp_path: Path, node: nodes.SimulatedNode) -> Iterator[bundles.Runtime]:
    """vgpu-runtime, as Docker's daemon.json names it."""
    made = bundles.Runtime(tmp_path / "shim", str(node.shim), "--vgpu-config", str(node.config))
    yield made
    made.cleanup()


class Pods:
    """Makes bundles of one form; `uid` is the pod's."""

    def __init__(self, form: str, rootfs: Path, node: nodes.SimulatedNode, cgroup: str, directory: Path) -> None:
        self.path, self.annotations = FORMS[form]
        self.told = "train" if "train" in self.annotations.values() else ""
        self.rootfs, self.node, self.cgroup, self.directory = rootfs, node, cgroup, directory

    def uid_of(self, uid: str) -> str:
        return uid if "{" in self.path else self.path.split("/")[1][3:]

    def container(self, uid: str, grants: dict[str, str]) -> bundles.Bundle:
        made = bundles.Bundle(self.directory / uuid.uuid4().hex[:8], self.rootfs).simulated(self.node)
        path = self.path.format(uid=uid, under=uid.replace("-", "_"))
        made.config["linux"]["cgroupsPath"] = f"{self.cgroup}/{path}"
        made.config["annotations"] = {key: value.format(uid=uid) for key, value in self.annotations.items()}
        if self.told:
            made.config["annotations"].update({f"vgpu.io/grant-{name}": id for name, id in grants.items()})
        made.config["process"]["env"] += [f"VGPU_GRANT_{name.upper()}={id}" for name, id in grants.items()]
        return made.command("cudaprobe", "info")


def pairs(text: str) -> dict[str, str]:
    """`key value` lines."""
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


@pytest.mark.parametrize("form", FORMS)
def test_the_pod_is_identified(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path, form: str
) -> None:
    pods = Pods(form, rootfs(), node, cgroup, tmp_path)
    uid, grants = str(uuid.uuid4()), {"cores": node.grant("cores", 30), "memory": node.grant("memory", 1024 * MIB)}
    for _ in range(2):  # a restart claims again
        done = shim.run(pods.container(uid, grants))
        assert done.returncode == 0, done.stderr
        assert pairs(done.stdout)["card0.total"] == str(GIB)
    record = json.loads((Path(node.settings.state_dir) / f"grants/{grants['cores']}.json").read_text())
    assert record["holder"] == {"pod_uid": pods.uid_of(uid), "container": pods.told}
    if pods.uid_of(uid) == uid:
        done = shim.run(pods.container(str(uuid.uuid4()), grants))
        assert done.returncode != 0
        assert uid in done.stderr


@pytest.mark.parametrize("form", ["containerd-cgroupfs", "crio-systemd"])
def test_an_annotation_that_contradicts_the_path_stops_the_container(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path, form: str
) -> None:
    pods = Pods(form, rootfs(), node, cgroup, tmp_path)
    made = pods.container(str(uuid.uuid4()), {"cores": node.grant("cores", 30), "memory": node.grant("memory", MIB)})
    key = next(key for key in made.config["annotations"] if key.endswith("uid"))
    made.config["annotations"][key] = other = str(uuid.uuid4())
    done = shim.run(made)
    assert done.returncode != 0
    assert "vgpu-hook: identity: pod uid" in done.stderr
    assert other in done.stderr


@pytest.mark.parametrize("key", [f"{CRI}.container-type", f"{CRIO}.ContainerType"])
def test_sandboxes_are_left_alone(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path, key: str
) -> None:
    pods = Pods("containerd-cgroupfs", rootfs(), node, cgroup, tmp_path)
    sandbox = pods.container(str(uuid.uuid4()), {})
    sandbox.config["annotations"].update({key: "sandbox", "vgpu.io/core-limit": "50"})
    done = shim.run(sandbox.command("ls", "/dev"))
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout
    assert "hooks" not in json.loads((sandbox.path / "config.json").read_text())


@pytest.mark.parametrize("key", [f"{CRI}.container-type", f"{CRIO}.ContainerType"])
def test_a_container_with_a_grant_is_never_taken_for_a_sandbox(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path, key: str
) -> None:
    """The type is forged: without a line the container would start without its share."""
    grants = {"cores": node.grant("cores", 30), "memory": node.grant("memory", 1024 * MIB)}
    made = Pods("containerd-cgroupfs", rootfs(), node, cgroup, tmp_path).container(str(uuid.uuid4()), grants)
    made.config["annotations"][key] = "sandbox"
    done = shim.run(made)
    assert done.returncode != 0
    assert "container type: expected no sandbox, as the container has a grant, found sandbox" in done.stderr


@pytest.mark.parametrize("form", FORMS)
def test_a_pod_is_never_standalone(
    shim: bundles.Runtime, rootfs: Rootfs, node: nodes.SimulatedNode, cgroup: str, tmp_path: Path, form: str
) -> None:
    """Without grants it gets nothing, whatever its annotations request."""
    made = Pods(form, rootfs(), node, cgroup, tmp_path).container(str(uuid.uuid4()), {})
    made.config["annotations"].update({"vgpu.io/cores": "100", "vgpu.io/memory": "40Gi"})
    done = shim.run(made.command("ls", "/dev"))
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in done.stdout

"""A container's identity: cgroup paths of all drivers and runtimes, and annotations that complete or contradict it."""

from __future__ import annotations

import pytest

from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder
from vgpu.hook.request.identity import identify, pod_cgroup_of, pod_uid_of

UID = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"
UNDER = UID.replace("-", "_")
STATIC = "c1e1a3b5d7f90123456789abcdef0123"
OTHER = "aaaaaaaa-0b0e-4c53-9d3a-6f0f8f0f1a11"
ID = "ab" * 32

CGROUPFS = f"/kubepods/burstable/pod{UID}/{ID}"
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ID}.scope"

CRI = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.sandbox-id": "cd" * 32,
    "io.kubernetes.cri.sandbox-uid": UID,
    "io.kubernetes.cri.sandbox-name": "train-0",
    "io.kubernetes.cri.sandbox-namespace": "lab",
    "io.kubernetes.cri.container-name": "main",
}
CRIO = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": "cd" * 32,
    "io.kubernetes.pod.uid": UID,
    "io.kubernetes.pod.name": "train-0",
    "io.kubernetes.pod.namespace": "lab",
    "io.kubernetes.container.name": "main",
}
OLD_CONTAINERD = {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "cd" * 32}


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (CGROUPFS, UID),
        (f"/kubepods/pod{UID}/{ID}", UID),  # guaranteed
        (f"/kubepods/besteffort/pod{UID}/crio-{ID}", UID),
        (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC),
        (SYSTEMD, UID),
        (f"/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{ID}.scope", UID),
        (f"/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{ID}.scope/container", UID),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/docker-{ID}.scope", UID),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{ID}.scope", STATIC),
        # the systemd form where the runtime thinks in cgroupfs, and the other way round
        (f"/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ID}", UID),
        (f"/kubepods-besteffort-pod{UNDER}.slice:cri-containerd:{ID}", UID),
        (f"/kubepods.slice/kubepods-burstable.slice:pod{UID}:{ID}", UID),
        # kubelet with a cgroup root of its own: kind, minikube, k3s
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope", UID),
        (f"/kubelet/kubepods/besteffort/pod{UID}/{ID}", UID),
        (f"/docker/{ID}/kubelet/kubepods/besteffort/pod{UID}/{ID}", UID),
        # docker in docker, and a kubelet inside a pod: the outermost pod is the host's
        (f"/kubepods/burstable/pod{UID}/{ID}/docker/{'ef' * 32}", UID),
        (f"/kubepods/burstable/pod{UID}/{ID}/kubepods/burstable/pod{OTHER}/{ID}", UID),
        (f"/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{ID}.scope/podman-pod{OTHER}.slice", UID),
        # nothing to be read
        ("/kubepods", ""),
        ("/kubepods/burstable", ""),
        ("/kubepods.slice/kubepods-burstable.slice", ""),
        (f"/kubepods/burstable/pod/{ID}", ""),
        (f"/kubepods/burstable/pod{'a' * 65}/{ID}", ""),
        (f"/kubepods/burstable/podä{UID}/{ID}", ""),
        (f"/kubepods/burstable/pod{UID}\n/{ID}", ""),
    ],
)
def test_pod_uid_of_a_cgroup_path(path: str, uid: str) -> None:
    assert pod_uid_of(path) == uid


@pytest.mark.parametrize(
    ("path", "pod"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", f"/kubepods/burstable/pod{UID}"),
        (f"/kubepods/pod{UID}/{ID}/inner", f"/kubepods/pod{UID}"),
        (f"/kubepods/pod{UID}", f"/kubepods/pod{UID}"),
        (f"/lxc/n1/kubepods/pod{UID}/{ID}", f"/lxc/n1/kubepods/pod{UID}"),
        (f"/kubepods/pod{UID}/docker/kubepods/pod{OTHER}/{ID}", f"/kubepods/pod{UID}"),
        (SYSTEMD, SYSTEMD.rpartition("/")[0]),
        (f"/kubepods-besteffort-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}", ""),  # the container's own
        ("/kubepods/burstable", ""),
        (f"/docker/{ID}", ""),
        ("", ""),
    ],
)
def test_the_cgroup_of_the_whole_pod(path: str, pod: str) -> None:
    assert pod_cgroup_of(path) == pod


@pytest.mark.parametrize(
    ("paths", "annotations", "holder", "name"),
    [
        ([CGROUPFS], CRI, Holder(UID, "main"), "lab/train-0/main"),
        ([SYSTEMD], CRI, Holder(UID, "main"), "lab/train-0/main"),
        ([SYSTEMD], CRIO, Holder(UID, "main"), "lab/train-0/main"),
        (["/", CGROUPFS, "/system.slice/containerd.service"], CRI, Holder(UID, "main"), "lab/train-0/main"),
        ([CGROUPFS, SYSTEMD], {}, Holder(UID, ""), ""),  # docker under kubelet: no annotation at all
        ([CGROUPFS], OLD_CONTAINERD, Holder(UID, ""), ""),
        ([f"/kubepods/burstable/pod{STATIC}/{ID}"], {}, Holder(STATIC, ""), ""),
        # cgroups-per-qos=false: the path does not contain it, the runtime's annotations do
        (["/system.slice/x"], CRI, Holder(UID, "main"), "lab/train-0/main"),
        ([], CRIO, Holder(UID, "main"), "lab/train-0/main"),
        ([CGROUPFS], {**CRI, **CRIO}, Holder(UID, "main"), "lab/train-0/main"),
    ],
)
def test_kubernetes_containers(paths: list[str], annotations: dict[str, str], holder: Holder, name: str) -> None:
    identity = identify(paths, annotations)
    assert identity.kubernetes
    assert identity.holder == holder
    assert identity.name == name
    assert not identity.sandbox


@pytest.mark.parametrize(
    ("paths", "annotations"),
    [
        ([], {}),
        (["/user.slice/user-0.slice/session-1.scope"], {}),
        (["/docker/" + ID], {"vgpu.io/cores": "10"}),
        (["/machine.slice/libpod-x.scope"], {"io.kubernetes.container.name": "main"}),  # a name alone is not enough
        (["/"], {"io.kubernetes.cri.sandbox-uid": ""}),
    ],
)
def test_everything_else_is_standalone(paths: list[str], annotations: dict[str, str]) -> None:
    identity = identify(paths, annotations)
    assert not identity.kubernetes
    assert identity.holder is None


@pytest.mark.parametrize(
    ("paths", "annotations", "words"),
    [
        # forged inside kubepods: the path comes from the kernel
        ([CGROUPFS], {**CRI, "io.kubernetes.cri.sandbox-uid": OTHER}, [UID, OTHER]),
        ([SYSTEMD], {"io.kubernetes.pod.uid": OTHER}, [UID, OTHER]),
        ([CGROUPFS, f"/kubepods/pod{OTHER}/{ID}"], {}, [UID, OTHER]),
        # forged outside, with the runtime's own annotations (CRI-O passes all annotations of a pod on)
        ([], {**CRIO, "io.kubernetes.cri.sandbox-uid": OTHER}, [UID, OTHER]),
        ([CGROUPFS], {**CRIO, "io.kubernetes.cri.container-name": "rich"}, ["container name", "main", "rich"]),
        # an annotation of Kubernetes and no uid: never standalone
        (["/kubepods/burstable"], {"vgpu.io/cores": "100"}, ["/kubepods/burstable"]),
        ([], OLD_CONTAINERD, ["its annotations"]),
        (["/x"], {"io.kubernetes.cri.sandbox-id": "ab"}, ["its annotations"]),
        # texts that no record may contain
        ([], {"io.kubernetes.pod.uid": "a" * 65}, ["pod uid"]),
        ([], {"io.kubernetes.pod.uid": "../../x"}, ["pod uid"]),
        ([], {"io.kubernetes.pod.uid": "a\nb"}, ["pod uid", "\\x0a"]),
        ([CGROUPFS], {"io.kubernetes.container.name": "ma\nin"}, ["container name", "\\x0a"]),
        ([CGROUPFS], {"io.kubernetes.container.name": "m" * 254}, ["container name"]),
        ([CGROUPFS], {"io.kubernetes.container.name": "\ud800"}, ["container name"]),
    ],
)
def test_contradictions_are_refused(paths: list[str], annotations: dict[str, str], words: list[str]) -> None:
    with pytest.raises(VgpuError) as refused:
        identify(paths, annotations)
    line = str(refused.value)
    assert "\n" not in line
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("annotations", "sandbox"),
    [
        ({"io.kubernetes.cri.container-type": "sandbox"}, True),
        ({"io.kubernetes.cri-o.ContainerType": "sandbox"}, True),
        ({"io.kubernetes.cri.container-type": "container"}, False),
        ({}, False),
        # a tenant's own cannot make one of a sandbox that the runtime calls so, nor the reverse
        ({"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri-o.ContainerType": "sandbox"}, True),
    ],
)
def test_sandboxes(annotations: dict[str, str], sandbox: bool) -> None:
    assert identify([CGROUPFS], annotations).sandbox is sandbox


def test_the_name_for_people_is_one_bounded_line() -> None:
    annotations = {**CRI, "io.kubernetes.cri.sandbox-name": "a\nb", "io.kubernetes.cri.sandbox-namespace": "n" * 9999}
    name = identify([CGROUPFS], annotations).name
    assert name.isprintable()
    assert len(name) < 600

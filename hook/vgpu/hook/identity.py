"""Who a container is, from what tenants cannot write where that is possible.

Belongs here: pod uid and container name, and whether the container is Kubernetes' at all. The cgroup path is the
kernel's word and comes first; annotations complete it and must not contradict it. Pure: paths and annotations in.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError
from vgpu.config.grants import Holder

KUBEPODS = "kubepods"
MAX_UID = 64  # a UUID has 36 characters, the hash of a static pod 32
POD_UIDS = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
CONTAINER_NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
CONTAINER_TYPES = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
SANDBOX_IDS = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
POD_NAMES = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
NAMESPACES = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")


class Identity:
    """`holder` is None outside Kubernetes. `name` is for people: namespace/pod/container, or ""."""

    __slots__ = ("holder", "name", "sandbox")

    def __init__(self, holder: Holder | None, name: str = "", sandbox: bool = False) -> None:
        self.holder = holder
        self.name = name
        self.sandbox = sandbox

    @property
    def kubernetes(self) -> bool:
        return self.holder is not None


def identify(cgroup_paths: list[str], annotations: dict[str, str]) -> Identity:
    """The identity behind `cgroup_paths` (all hierarchies of the container's init) and `annotations`.

    Kubernetes' mark in either makes it Kubernetes' and so never standalone: the safe side for both.
    """
    inside = [path for path in cgroup_paths if KUBEPODS in path]
    told = _first(annotations, POD_UIDS)
    if not inside and not told and not _first(annotations, SANDBOX_IDS):
        return Identity(None)
    uid = _pod_uid(inside, told)
    container = _first(annotations, CONTAINER_NAMES)
    parts = (_first(annotations, NAMESPACES), _first(annotations, POD_NAMES), container)
    name = "/".join(part for part in parts if part)
    return Identity(Holder(uid, container), name, _first(annotations, CONTAINER_TYPES) == "sandbox")


def _pod_uid(paths: list[str], told: str) -> str:
    """The pod's uid; VgpuError when the paths or the annotation disagree, or nothing tells it."""
    uids = {uid for path in paths if (uid := pod_uid_of(path))}
    if told:
        uids.add(told)
    if len(uids) != 1:
        found = " and ".join(sorted(uids)) or f"none in {paths[0] if paths else 'its annotations'}"
        raise VgpuError("pod uid", expected="one, in the cgroup's path and the annotations alike", found=found)
    return uids.pop()


def pod_uid_of(path: str) -> str:
    """The pod uid in a kubelet's cgroup path of either driver, "" when there is none.

    cgroupfs: kubepods/burstable/pod<uid>/<id>; systemd: kubepods-burstable-pod<uid, - as _>.slice/...; and, where a
    runtime took the one form for the other, kubepods-besteffort-pod<uid>.slice:cri-containerd:<id>. A pod's own
    containers (docker in docker) come after it: the first one counts.
    """
    for part in path[path.find(KUBEPODS) :].replace(":", "/").split("/"):
        name = part[:-6] if part.endswith(".slice") else part
        uid = name[3:] if name.startswith("pod") else name.partition("-pod")[2]
        if uid and len(uid) <= MAX_UID and all(c.isascii() and (c.isalnum() or c in "-_") for c in uid):
            return uid.replace("_", "-")
    return ""


def _first(annotations: dict[str, str], keys: tuple[str, ...]) -> str:
    return next((annotations[key] for key in keys if annotations.get(key)), "")

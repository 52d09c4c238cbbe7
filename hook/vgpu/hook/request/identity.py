"""Who a container is, from what tenants cannot write where that is possible.

Belongs here: pod uid and container name, and whether the container is Kubernetes' at all. The cgroup path is the
kernel's word and comes first; annotations complete it and must not contradict it. Pure: paths and annotations in.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError, escaped
from vgpu.config.grants import Holder

KUBEPODS = "kubepods"
MAX_UID = 64  # a UUID has 36 characters, the hash of a static pod 32
MAX_NAME = 253  # Kubernetes' own bound of any name
POD_UIDS = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
CONTAINER_NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
CONTAINER_TYPES = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
SANDBOX_IDS = ("io.kubernetes.cri.sandbox-id",)  # not CRI-O's: podman marks the containers of its own pods with it
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
    told = _all(annotations, POD_UIDS)
    if not inside and not told and not _all(annotations, SANDBOX_IDS):
        return Identity(None)
    uid = _pod_uid(inside, told)
    container = _container_name(annotations)
    parts = [*_all(annotations, NAMESPACES)[:1], *_all(annotations, POD_NAMES)[:1], container]
    name = escaped("/".join(part[:MAX_NAME] for part in parts if part))
    return Identity(Holder(uid, container), name, "sandbox" in _all(annotations, CONTAINER_TYPES))


def _pod_uid(paths: list[str], told: list[str]) -> str:
    """The pod's uid; VgpuError when the paths or the annotations disagree, or nothing tells it."""
    uids = {uid for path in paths if (uid := pod_uid_of(path))}.union(told)
    if len(uids) != 1:
        found = " and ".join(sorted(uids)) or f"none in {paths[0] if paths else 'its annotations'}"
        raise VgpuError("pod uid", expected="one, in the cgroup's path and the annotations alike", found=found)
    uid = uids.pop()
    if not _plain(uid, MAX_UID):
        raise VgpuError("pod uid", expected=f"at most {MAX_UID} letters, digits and -", found=uid)
    return uid


def _container_name(annotations: dict[str, str]) -> str:
    """The container's name in its pod, "" where no runtime tells it. Two that differ: one is the tenant's own."""
    names = set(_all(annotations, CONTAINER_NAMES))
    if len(names) > 1:
        found = " and ".join(sorted(names))
        raise VgpuError("container name", expected="one, in all annotations alike", found=found)
    name = names.pop() if names else ""
    if name and not _plain(name, MAX_NAME):
        raise VgpuError("container name", expected=f"at most {MAX_NAME} letters, digits, - and .", found=name)
    return name


def pod_uid_of(path: str) -> str:
    """The pod uid in a kubelet's cgroup path of either driver, "" when there is none.

    cgroupfs: kubepods/burstable/pod<uid>/<id>; systemd: kubepods-burstable-pod<uid, - as _>.slice/...; and, where a
    runtime took the one form for the other, kubepods-besteffort-pod<uid>.slice:cri-containerd:<id>. A pod's own
    containers (docker in docker) come after it: the first one counts.
    """
    for part in path[path.find(KUBEPODS) :].replace(":", "/").split("/"):
        name = part[:-6] if part.endswith(".slice") else part
        uid = name[3:] if name.startswith("pod") else name.partition("-pod")[2]
        if "." not in uid and _plain(uid, MAX_UID):
            return uid.replace("_", "-")
    return ""


def _plain(text: str, longest: int) -> bool:
    """Whether `text` is what Kubernetes names things with; nothing else is ever written into a record."""
    return 0 < len(text) <= longest and all(c.isascii() and (c.isalnum() or c in "-_.") for c in text)


def _all(annotations: dict[str, str], keys: tuple[str, ...]) -> list[str]:
    return [annotations[key] for key in keys if annotations.get(key)]

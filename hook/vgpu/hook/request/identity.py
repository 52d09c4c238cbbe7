"""The container's identity, as far as possible from facts that tenants cannot write.

Belongs here: the pod's uid, the container's name, and whether the container belongs to Kubernetes. The kernel's cgroup
path comes first; annotations complete it and must not contradict it. Not here: reading either. Pure functions of paths
and annotations.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError, escaped
from vgpu.config.grants import Holder

KUBEPODS = "kubepods"
MAX_UID = 64  # a UUID has 36 characters, the hash of a static pod 32
MAX_NAME = 253  # Kubernetes' own limit on names
POD_UIDS = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
CONTAINER_NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
CONTAINER_TYPES = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
SANDBOX_IDS = (
    "io.kubernetes.cri.sandbox-id",
)  # without CRI-O's key: podman puts that on the containers of its own pods
POD_NAMES = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
NAMESPACES = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")


class Identity:
    """`holder` is None outside Kubernetes. `name` is namespace/pod/container, for messages, or ""."""

    __slots__ = ("holder", "name", "sandbox")

    def __init__(self, holder: Holder | None, name: str = "", sandbox: bool = False) -> None:
        self.holder = holder
        self.name = name
        self.sandbox = sandbox

    @property
    def kubernetes(self) -> bool:
        return self.holder is not None


def in_kubepods(cgroup_paths: list[str]) -> bool:
    """Whether the kernel has the container in a cgroup of kubelet."""
    return any(KUBEPODS in path for path in cgroup_paths)


def identify(cgroup_paths: list[str], annotations: dict[str, str]) -> Identity:
    """The identity from `cgroup_paths` (of the container's init, in all hierarchies) and `annotations`.

    A mark of Kubernetes in either makes the container one of Kubernetes, never a standalone one. That is the safe
    choice in both cases.
    """
    inside = [path for path in cgroup_paths if KUBEPODS in path]
    annotated = _all(annotations, POD_UIDS)
    if not inside and not annotated and not _all(annotations, SANDBOX_IDS):
        return Identity(None)
    uid = _pod_uid(inside, annotated)
    container = _container_name(annotations)
    parts = [*_all(annotations, NAMESPACES)[:1], *_all(annotations, POD_NAMES)[:1], container]
    name = escaped("/".join(part[:MAX_NAME] for part in parts if part))
    return Identity(Holder(uid, container), name, "sandbox" in _all(annotations, CONTAINER_TYPES))


def _pod_uid(paths: list[str], annotated: list[str]) -> str:
    """The pod's uid; VgpuError when paths and annotations disagree, or none has it."""
    uids = {uid for path in paths if (uid := pod_uid_of(path))}.union(annotated)
    if len(uids) != 1:
        found = " and ".join(sorted(uids)) or f"none in {paths[0] if paths else 'its annotations'}"
        raise VgpuError("pod uid", expected="one, in the cgroup's path and the annotations alike", found=found)
    uid = uids.pop()
    if not _plain(uid, MAX_UID):
        raise VgpuError("pod uid", expected=f"at most {MAX_UID} letters, digits and -", found=uid)
    return uid


def _container_name(annotations: dict[str, str]) -> str:
    """The container's name in its pod, "" without one. Different names are refused: a tenant wrote one of them."""
    names = set(_all(annotations, CONTAINER_NAMES))
    if len(names) > 1:
        found = " and ".join(sorted(names))
        raise VgpuError("container name", expected="one, in all annotations alike", found=found)
    name = names.pop() if names else ""
    if name and not _plain(name, MAX_NAME):
        raise VgpuError("container name", expected=f"at most {MAX_NAME} letters, digits, - and .", found=name)
    return name


def pod_cgroup_record(cgroup: str) -> str:
    """The pod's cgroup for a grant, from that of a container's init; both `<controllers>:<path>`, "" for none."""
    controllers, _, path = cgroup.partition(":")
    pod = pod_cgroup_of(path)
    return f"{controllers}:{pod}" if pod else ""


def pod_uid_of(path: str) -> str:
    """The pod uid in a cgroup path of kubelet, with either of its cgroup drivers; "" when there is none.

    cgroupfs: kubepods/burstable/pod<uid>/<id>; systemd: kubepods-burstable-pod<uid, - as _>.slice/...; and, where a
    runtime mistook one form for the other, kubepods-besteffort-pod<uid>.slice:cri-containerd:<id>. Pods inside a pod
    (docker in docker) come later in the path, so the first uid counts.
    """
    return _pod_in(path)[0]


def pod_cgroup_of(path: str) -> str:
    """The cgroup of the whole pod around the cgroup `path` of a container; "" when there is none.

    In the mistaken form one cgroup's name has both the pod's uid and the container's id, so the pod has no cgroup.
    """
    uid, end = _pod_in(path)
    return path[:end] if uid and path[end : end + 1] in ("", "/") else ""


def _pod_in(path: str) -> tuple[str, int]:
    """The pod uid in a cgroup path, and where the part of the path with it ends."""
    end = path.find(KUBEPODS) - 1
    for part in path[end + 1 :].replace(":", "/").split("/") if end >= -1 else ():
        end += len(part) + 1
        name = part[:-6] if part.endswith(".slice") else part
        uid = name[3:] if name.startswith("pod") else name.partition("-pod")[2]
        if "." not in uid and _plain(uid, MAX_UID):
            return uid.replace("_", "-"), end
    return "", 0


def _plain(text: str, longest: int) -> bool:
    """Whether `text` has only the characters of Kubernetes' names. No other text enters a record."""
    return 0 < len(text) <= longest and all(c.isascii() and (c.isalnum() or c in "-_.") for c in text)


def _all(annotations: dict[str, str], keys: tuple[str, ...]) -> list[str]:
    return [annotations[key] for key in keys if annotations.get(key)]

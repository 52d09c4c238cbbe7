"""The records of this node's pods, which the plugin writes for the hook. `<run>/pods/<uid>.json`, for root only.

Belongs here: the record, its reading and writing. Not here: following the API server, which is the plugin's, or waiting
for a record (vgpu.hook.request.pod_record). A tenant or a scheduler may have written a pod's annotations. Names, node
and limits come from the pod's spec, which the API server has admitted and which nobody can change.
"""

from __future__ import annotations

import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.fields import Fields

VERSION = 1
_DO = "restart vgpu-device-plugin, which writes it anew"


class Pod:
    """One pod. `init_containers` and `containers` are names in the order of the spec. `limits` is container -> resource
    -> whole number, for extended resources only. A pod of which only annotations are known has neither uid nor names.
    """

    __slots__ = ("annotations", "containers", "init_containers", "limits", "name", "namespace", "node", "uid")

    def __init__(
        self,
        uid: str,
        namespace: str,
        name: str,
        node: str,
        init_containers: list[str],
        containers: list[str],
        annotations: dict[str, str],
        limits: dict[str, dict[str, int]],
    ) -> None:
        self.uid = uid
        self.namespace = namespace
        self.name = name
        self.node = node
        self.init_containers = init_containers
        self.containers = containers
        self.annotations = annotations
        self.limits = limits

    def names(self) -> list[str]:
        """The names of all containers, init containers first."""
        return [*self.init_containers, *self.containers]

    def record(self) -> dict[str, object]:
        return {
            "version": VERSION, "uid": self.uid, "namespace": self.namespace, "name": self.name, "node": self.node,
            "init_containers": self.init_containers, "containers": self.containers, "annotations": self.annotations,
            "limits": self.limits,
        }  # fmt: skip


def read(run_dir: str, uid: str) -> Pod:
    """The pod's record; FileNotFoundError when there is none, VgpuError when its file is damaged."""
    path = paths.pod(run_dir, uid)
    pod = from_record(records.read(path, _DO), path)
    if pod.uid != uid:
        raise VgpuError(path, expected=f"the record of pod {uid}", found=f"that of {pod.uid}", do=_DO)
    return pod


def write(run_dir: str, pod: Pod) -> None:
    """Store `pod` over its earlier record."""
    os.makedirs(paths.pods(run_dir), mode=0o700, exist_ok=True)
    records.write(paths.pod(run_dir, pod.uid), pod.record())


def remove(run_dir: str, uid: str) -> None:
    """Remove a pod's record, if there is one."""
    try:
        os.unlink(paths.pod(run_dir, uid))
    except FileNotFoundError:
        return


def uids(run_dir: str) -> list[str]:
    """The uids of the pods that have a record."""
    try:
        names = os.listdir(paths.pods(run_dir))
    except FileNotFoundError:
        return []
    return sorted(name[:-5] for name in names if name.endswith(".json") and paths.is_pod_uid(name[:-5]))


def from_record(record: dict[str, object], source: str) -> Pod:
    """The Pod in `record`; a VgpuError names `source` and the wrong field."""
    fields = Fields(record, source, _DO)
    fields.version(VERSION)
    if not paths.is_pod_uid(fields.text("uid")):
        raise fields.wrong("uid", "a pod's uid")
    limits = fields.inner("limits")
    return Pod(
        fields.text("uid"),
        fields.text("namespace"),
        fields.text("name"),
        fields.text("node"),
        fields.texts("init_containers"),
        fields.texts("containers"),
        dict(fields.mapping("annotations")),
        {name: _amounts(limits.inner(name)) for name in limits.record},
    )


def _amounts(fields: Fields) -> dict[str, int]:
    return {name: fields.whole(name) for name in fields.record}

"""What kubelet says of the devices that pods have: its pod-resources socket, List of version 1.

Belongs here: the call, and its answer in the form that grants have (cards and numbers instead of names). What follows
from it is vgpu.plugin.kubelet.grant_gc's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc

from vgpu.config import ranges
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.ranges import Range
from vgpu.config.settings import Settings
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import device_tags
from vgpu.plugin.kubelet.proto import podresources_pb2, services

MAX_MESSAGE = 64 << 20
TIMEOUT = 5.0  #: seconds

Pod = tuple[str, str]  #: namespace and name: kubelet does not tell the uid
Life = tuple[int, int, int]  #: of the socket: kubelet makes a new one whenever it starts


@dataclass(frozen=True)
class Held:
    """Device ids of one container. `kind` is "" for a resource that the settings in force do not name."""

    pod: Pod
    container: str
    kind: str
    ranges: dict[str, list[Range]]  #: card's tag -> its numbers, from and to


@dataclass(frozen=True)
class Listing:
    """One answer. `containers`: pod -> the names listed of it, which leaves out most init containers.

    `tags`: card's uuid -> what it is called in ids, where that is written down.
    """

    life: Life
    containers: dict[Pod, set[str]]
    held: list[Held]
    tags: dict[str, str] = field(default_factory=dict)

    def holders(self, grant: Grant) -> list[Held]:
        """Who has ids of `grant`."""
        tags = self.tags
        wanted = {
            tags.get(uuid) or kubelet_resources.tag_of(uuid): ranges.read(ids) for uuid, ids in grant.devices.items()
        }
        return [held for held in self.held if held.kind in (grant.resource, "") and _has(held, wanted)]


def ask(settings: Settings) -> Listing:
    """kubelet's answer now; VgpuError when there is none, FileNotFoundError when there is no kubelet."""
    path = settings.text("plugin.pod_resources_socket")
    life = _life(path)
    options = [("grpc.max_receive_message_length", MAX_MESSAGE)]
    with grpc.insecure_channel("unix://" + path, options=options) as channel:
        client = services.Client(channel, podresources_pb2, "PodResourcesLister")
        try:
            answer = client.List(podresources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise VgpuError(path, expected="kubelet's answer", found=_told(error)) from None
    if _life(path) != life:
        raise VgpuError(path, expected="one kubelet", found="a restart meanwhile")
    return listing(life, answer, settings)


def listing(life: Life, answer: podresources_pb2.ListPodResourcesResponse, settings: Settings) -> Listing:
    kinds = {
        settings.text("resources.core_name"): "cores", settings.text("resources.memory_name"): "memory",
        settings.text("resources.gpu_name"): "gpu",
    }  # fmt: skip
    containers: dict[Pod, set[str]] = {}
    held = []
    for pod in answer.pod_resources:
        name = (pod.namespace, pod.name)
        for container in pod.containers:
            containers.setdefault(name, set()).add(container.name)
            for devices in container.devices:
                found = {tag: ranges.of(numbers) for tag, numbers in _numbers(devices.device_ids).items()}
                if found:
                    held.append(Held(name, container.name, kinds.get(devices.resource_name, ""), found))
        containers.setdefault(name, set())
    return Listing(life, containers, held, device_tags.read(settings.state_dir))


def _numbers(ids: Iterable[str]) -> dict[str, set[int]]:
    """Our ids among `ids`: other plugins' look different."""
    found: dict[str, set[int]] = {}
    for device_id in ids:
        tag, _, digits = device_id.partition("-")
        if kubelet_resources.is_tag(tag) and ranges.is_number(digits):
            found.setdefault(tag, set()).add(int(digits))
    return found


def _has(held: Held, wanted: dict[str, list[Range]]) -> bool:
    return any(ranges.overlap(found, wanted[tag]) for tag, found in held.ranges.items() if tag in wanted)


def _life(path: str) -> Life:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _told(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)

"""kubelet's list of the devices that pods have: List of version 1 at its pod-resources socket.

Belongs here: the call, and its answer in the form of grants (cards and numbers instead of device ids). What follows
from the answer belongs to vgpu.plugin.kubelet.grant_gc.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc

from vgpu.config import ranges
from vgpu.config.dialects import resources
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant
from vgpu.config.ranges import Range
from vgpu.config.request import MIG_RESOURCE
from vgpu.config.settings import Settings
from vgpu.node.service import kubelet_resources
from vgpu.plugin.kubelet import device_tags
from vgpu.plugin.kubelet.proto import podresources_pb2, services

MAX_MESSAGE = 64 << 20  #: bytes
TIMEOUT = 5.0  #: seconds

Pod = tuple[str, str]  #: namespace and name; kubelet's answer has no uid
#: One run of kubelet: device, inode and ctime of the socket that kubelet creates when it starts.
Life = tuple[int, int, int]


@dataclass(frozen=True)
class Held:
    """Device ids of one container. `kind` is "" for a resource that the current settings do not name."""

    pod: Pod
    container: str
    kind: str
    ranges: dict[str, list[Range]]  #: card's tag -> ranges of its device numbers


@dataclass(frozen=True)
class Listing:
    """One answer. `containers`: pod -> the names of its listed containers; most init containers are missing.

    `tags`: card's uuid -> the card's tag in device ids, from the record of tags.
    """

    life: Life
    containers: dict[Pod, set[str]]
    held: list[Held]
    tags: dict[str, str] = field(default_factory=dict)

    def holders(self, grant: Grant) -> list[Held]:
        """The containers that have device ids of `grant`."""
        tags = self.tags
        wanted = {
            tags.get(uuid) or kubelet_resources.tag_of(uuid): ranges.read(ids) for uuid, ids in grant.devices.items()
        }
        return [held for held in self.held if held.kind in (grant.resource, "") and _has(held, wanted)]


def fetch(settings: Settings) -> Listing:
    """Call List; VgpuError when kubelet does not answer, FileNotFoundError when there is no kubelet."""
    path = settings.text("plugin.pod_resources_socket")
    life = _life(path)
    options = [("grpc.max_receive_message_length", MAX_MESSAGE)]
    with grpc.insecure_channel("unix://" + path, options=options) as channel:
        client = services.Client(channel, podresources_pb2, "PodResourcesLister")
        try:
            answer = client.List(podresources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise VgpuError(path, expected="kubelet's answer", found=_reason(error)) from None
    if _life(path) != life:
        raise VgpuError(path, expected="one kubelet", found="a restart during the call")
    return listing(life, answer, settings)


def listing(life: Life, answer: podresources_pb2.ListPodResourcesResponse, settings: Settings) -> Listing:
    kinds = {
        settings.text("resources.core_name"): "cores", settings.text("resources.memory_name"): "memory",
        settings.text("resources.gpu_name"): "gpu", MIG_RESOURCE: "mig",
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
                    kind = kinds.get(resources.family(devices.resource_name), "")
                    held.append(Held(name, container.name, kind, found))
        containers.setdefault(name, set())
    return Listing(life, containers, held, device_tags.read(settings.state_dir))


def _numbers(ids: Iterable[str]) -> dict[str, set[int]]:
    """Card's tag -> numbers, of the ids that this plugin makes. Those of other plugins have another form."""
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


def _reason(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)

"""The metrics of other projects, under their names, labels and units, for dashboards that were made for them.

Belongs here: gpu-manager's four gauges, HAMi's names, gpu-fractioning's three. Where a project's figure means something
that vgpu does not know, there is no series. Not here: vgpu's own names (vgpu.plugin.exporter.families).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from prometheus_client.core import Metric

from vgpu.plugin.exporter.exposition import GAUGE, Names, family
from vgpu.plugin.exporter.snapshot import Container, Fields, Share, Snapshot

MIB = 1 << 20
GPU_MANAGER = ("pod_name", "namespace", "node", "container_name")
HAMI_CARD = ("node", "device_index", "device_uuid", "device_type")
HAMI_SHARE = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
FRACTIONING = ("namespace", "pod", "pod_uuid", "gpu_uuid", "gpu")
TOTAL = "total"

Rows = list[tuple[Names, Optional[float]]]


def of_snapshot(snapshot: Snapshot, wanted: list[str]) -> Iterator[Metric]:
    """The families of the projects that the setting metrics.compat names."""
    for name in wanted:
        yield from PROJECTS[name](snapshot)


def _gpu_manager(snapshot: Snapshot) -> Iterator[Metric]:
    """Percent of cards, and MiB. gpu-manager's `container_gpu_memory_total` is the memory in use."""
    use: Rows = []
    memory: Rows = []
    wanted_use: Rows = []
    wanted_memory: Rows = []
    for one in snapshot.containers:
        at = (one.pod, one.namespace, snapshot.node, one.name)
        for share in one.shares:
            use.append(((*at, f"gpu{share.index}"), share.use() or 0.0))
            memory.append(((*at, f"gpu{share.index}"), in_use(share) / MIB))
        use.append(((*at, TOTAL), sum(share.use() or 0.0 for share in one.shares)))
        memory.append(((*at, TOTAL), sum(map(in_use, one.shares)) / MIB))
        cores, held = request(snapshot, one)
        wanted_use.append(((*at, TOTAL), cores / 100))
        wanted_memory.append(((*at, TOTAL), held / MIB))
    yield _of_manager("container_gpu_utilization", "gpu utilization", "gpu", use)
    yield _of_manager("container_gpu_memory_total", "gpu memory usage in MiB", "gpu_memory", memory)
    yield _of_manager("container_request_gpu_utilization", "request of gpu utilization", "req_of_gpu", wanted_use)
    yield _of_manager("container_request_gpu_memory", "request of memory in MiB", "req_of_gpu_memory", wanted_memory)


def _of_manager(name: str, text: str, label: str, rows: Rows) -> Metric:
    return family(GAUGE, name, text, (*GPU_MANAGER, label), rows)


def in_use(share: Share) -> float:
    """Bytes in use, as the container's programs see them; else by NVML, else 0."""
    used = share.memory_used()
    return (share.fields.number("memory_measured") or 0.0) if used is None else used


def request(snapshot: Snapshot, one: Container) -> tuple[float, float]:
    """(percent, bytes) that the container has of all its cards. A whole card counts with its memory."""
    memory = {card.uuid: card.fields.number("memory") or 0.0 for card in snapshot.cards}
    cores = sum(share.fields.number("cores") or 0.0 for share in one.shares)
    limits = ((share.fields.number("memory_limit"), memory.get(share.uuid, 0.0)) for share in one.shares)
    return cores, sum(whole if limit is None else limit for limit, whole in limits)


HAMI = (
    ("hami_vgpu_memory_used_bytes", "vGPU device memory usage", Share.memory_used),
    ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit", lambda share: share.fields.number("memory_limit")),
    ("hami_vgpu_memory_context_bytes", "Device memory of contexts and code",
     lambda share: share.memory_by_kind().get("driver")),
    ("hami_vgpu_memory_buffer_bytes", "Device memory of allocations",
     lambda share: share.memory_by_kind().get("allocated")),
    ("hami_container_device_utilization_ratio", "Container device utilization",
     lambda share: None if share.use() is None else (share.use() or 0.0) / 100),
    ("hami_container_last_kernel_elapsed_seconds", "Seconds since the last kernel was launched",
     lambda share: share.reported.seconds("idle_ns") if share.reported else None),
)  # fmt: skip
HAMI_CARDS = (
    ("hami_host_gpu_memory_used_bytes", "GPU device memory usage", Fields.number, "memory_used"),
    ("hami_host_gpu_utilization_ratio", "GPU core utilization", Fields.ratio, "utilization"),
)


def _hami(snapshot: Snapshot) -> Iterator[Metric]:
    cards = [((snapshot.node, card.index, card.uuid, card.model), card.fields) for card in snapshot.cards]
    for name, text, value, key in HAMI_CARDS:
        yield family(GAUGE, name, text, HAMI_CARD, [(at, value(fields, key)) for at, fields in cards])
    rows = [
        ((*one.labels, str(place), share.uuid), share)
        for one in snapshot.containers
        for place, share in enumerate(one.shares)
    ]
    for name, text, of_share in HAMI:
        yield family(GAUGE, name, text, HAMI_SHARE, [(at, of_share(share)) for at, share in rows])


def _gpu_fractioning(snapshot: Snapshot) -> Iterator[Metric]:
    """By pod and card. `normalized`: as a part of the share instead of the card."""
    pods: dict[tuple[str, str, str, str, str], list[Share]] = {}
    for one in snapshot.containers:
        for share in one.shares:
            at = (one.namespace, one.pod or one.name, one.pod_uid, share.uuid, share.index)
            pods.setdefault(at, []).append(share)
    memory = [(at, sum(map(in_use, shares))) for at, shares in pods.items()]
    use = {at: sum(share.use() or 0.0 for share in shares) for at, shares in pods.items()}
    cores = {at: sum(share.fields.number("cores") or 0.0 for share in shares) for at, shares in pods.items()}
    normalized = [(at, use[at] * 100 / cores[at]) for at in pods if cores[at]]
    name = "gpu_sharing_gpu_sm_utilization_percent"
    yield family(GAUGE, "gpu_sharing_gpu_memory_used_bytes", "GPU memory used by the pod", FRACTIONING, memory)
    yield family(GAUGE, name, "SM utilization of the pod", FRACTIONING, list(use.items()))
    yield family(GAUGE, f"{name}_normalized", "The same as a part of its share", FRACTIONING, normalized)


PROJECTS = {"gpu-manager": _gpu_manager, "hami": _hami, "gpu-fractioning": _gpu_fractioning}

"""Usage for programs: a snapshot as JSON of gpu-manager's shape. vgpu.plugin.exporter.page is the form for people."""

from __future__ import annotations

from vgpu.plugin.exporter.peer_families import MIB, in_use, request
from vgpu.plugin.exporter.snapshot import Container, Share, Snapshot


def as_json(snapshot: Snapshot) -> dict[str, object]:
    """gpu-manager's shape. A container outside Kubernetes stands under its own id instead of a pod's uid."""
    pods: dict[str, dict[str, object]] = {}
    for one in snapshot.containers:
        pod = pods.setdefault(one.pod_uid or one.id, {
            "stat": {}, "project": one.namespace, "user": "", "cluster": "", "spec": {},
        })  # fmt: skip
        cores, memory = request(snapshot, one)
        stat, spec = pod["stat"], pod["spec"]
        assert isinstance(stat, dict)
        assert isinstance(spec, dict)
        stat[one.name] = {"dev": [_device(snapshot, one, share) for share in one.shares]}
        spec[one.name] = {"gpu": cores / 100, "mem": memory / MIB}
    return {"usage": pods}


def _device(snapshot: Snapshot, one: Container, share: Share) -> dict[str, object]:
    memory = {card.uuid: card.fields.number("memory") or 0.0 for card in snapshot.cards}
    pids = [pid for pid in one.fields.items("pids") if isinstance(pid, int)]
    return {
        "id": share.bus_id, "card_idx": share.index, "gpu": share.use() or 0.0, "mem": in_use(share) / MIB,
        "pids": pids, "device_mem": memory.get(share.uuid, 0.0) / MIB,
    }  # fmt: skip

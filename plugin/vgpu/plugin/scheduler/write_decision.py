"""How a decision is written: one patch of the pod, or one Binding whose annotations carry it.

Belongs here: a decision -> annotations in the pod's dialect, and the requests to the API server. One dialect, never
two: what other schedulers have left on the pod is removed. Not here: when to write (vgpu.plugin.scheduler.service).
"""

from __future__ import annotations

from typing import Any, Protocol

from vgpu.config.dialects import placements
from vgpu.config.request import WHOLE_CARD
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.client import ApiError, Object
from vgpu.plugin.scheduler.decide import Decision, request_of
from vgpu.plugin.scheduler.demand import HAMI, MIB, Part, PodSpec
from vgpu.plugin.scheduler.node_cards import NodeCards

TRIES = 3
HAMI_OPEN, HAMI_TIME = "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-time"
HAMI_PHASE, HAMI_BOUND = "hami.io/bind-phase", "hami.io/bind-time"


class Server(Protocol):
    """The part of the API server's client that is used here."""

    def get(self, path: str, **query: str) -> Object: ...
    def patch(self, path: str, body: Object) -> Object: ...
    def post(self, path: str, body: Object) -> Object: ...


def annotations_of(pod: PodSpec, node: NodeCards, decision: Decision, now: float) -> dict[str, str]:
    """The decision, as the node reads it."""
    assert pod.demand is not None
    if pod.demand.dialect == HAMI:
        return _hami(pod, node, decision, now)
    shown = ";".join(
        f"{part.name}={','.join(_own(pod, part, node, at) for at in decision.cards[part.name])}"
        for part in pod.demand.parts
    )
    return {placements.OWN: shown, placements.OWN_NODE: node.name}


def _own(pod: PodSpec, part: Part, node: NodeCards, at: int) -> str:
    uuid = node.cards[at].uuid
    return uuid if part.cores >= WHOLE_CARD else f"{uuid}:{part.cores}:{part.memory // MIB}"


def _hami(pod: PodSpec, node: NodeCards, decision: Decision, now: float) -> dict[str, str]:
    assert pod.demand is not None
    parts = {part.name: part for part in pod.demand.parts}
    segments = []
    for name in pod.pod.names():
        cards = [_hami_card(pod, parts[name], node, at) for at in decision.cards.get(name, ())]
        segments.append("".join(cards) + ";")
    devices, when = "".join(segments), str(int(now))
    return {
        placements.HAMI: devices, HAMI_OPEN: devices, placements.HAMI_NODE: node.name, HAMI_TIME: when,
        HAMI_PHASE: "allocating", HAMI_BOUND: when,
    }  # fmt: skip


def _hami_card(pod: PodSpec, part: Part, node: NodeCards, at: int) -> str:
    """An amount that the spec leaves out is 0: the node then gives the vGPU its part of the card."""
    assert pod.demand is not None
    uuid = node.cards[at].uuid
    named = part.memory or part.percent
    mib = request_of(part, node, pod.demand.to_wishes()).memory_of(uuid) // MIB if named else 0
    return f"{uuid},NVIDIA,{mib},{part.cores}:"


def stale(pod: PodSpec, wanted: dict[str, str]) -> list[str]:
    """The keys of placements on the pod that a decision with the annotations `wanted` has to remove."""
    return [key for key in pod.foreign if key not in wanted]


def patch_pod(api: Server, pod: PodSpec, wanted: dict[str, str]) -> None:
    """Write the annotations on the pod as it is now; ApiError where it is gone, bound, or was changed all the time."""
    path, version = _path(pod), pod.version
    values: dict[str, Any] = {**dict.fromkeys(stale(pod, wanted)), **wanted}
    for attempt in range(TRIES):
        try:
            api.patch(path, {"metadata": {"uid": pod.uid, "resourceVersion": version, "annotations": values}})
            return
        except ApiError as error:
            if error.kind != "conflict" or attempt == TRIES - 1:
                raise
        node, version = _now(api, pod)
        if node:
            raise ApiError("conflict", f"{pod.label()}: it was bound to {node} meanwhile")


def node_of(api: Server, pod: PodSpec) -> str:
    """The node that the pod is bound to by now, "" for none; ApiError where the pod is gone."""
    return _now(api, pod)[0]


def _now(api: Server, pod: PodSpec) -> tuple[str, str]:
    """The pod's node and version as the server has them."""
    found = api.get(_path(pod))
    spec, meta = found.get("spec"), found.get("metadata")
    if not isinstance(meta, dict) or meta.get("uid") != pod.uid:
        raise ApiError("missing", f"{pod.label()}: another pod has the name now")
    node = spec.get("nodeName") if isinstance(spec, dict) else ""
    return node if isinstance(node, str) else "", pod_objects.version_of(found)


def bind_pod(api: Server, namespace: str, name: str, uid: str, node: str, wanted: dict[str, str]) -> None:
    """Bind the pod; the API server merges the annotations in the write that sets the node."""
    body: Object = {
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(wanted)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }  # fmt: skip
    api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)


def remove_stale(api: Server, pod: PodSpec, wanted: dict[str, str]) -> None:
    """Remove what other schedulers left on the pod, before it is bound: a Binding can only add annotations."""
    keys = stale(pod, wanted)
    if keys:
        api.patch(_path(pod), {"metadata": {"uid": pod.uid, "annotations": dict.fromkeys(keys)}})


def _path(pod: PodSpec) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"

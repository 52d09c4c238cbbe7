"""What a pod asks for: its containers with their amounts and wishes, read from the API server's object.

Belongs here: JSON of a pod -> PodSpec, in tencent's, the fork's and HAMi's resources. Pure. Limits are read, not
requests, as the node does. Amounts come from the spec alone; annotations bring wishes and cards. What is wrong in a pod
is kept as its `error`, so that the answer to its filter can name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vgpu.config import request
from vgpu.config.dialects import placements, resources
from vgpu.config.errors import VgpuError
from vgpu.config.pods import Pod
from vgpu.config.request import WHOLE_CARD, Wishes
from vgpu.plugin.apiserver import pod_objects
from vgpu.plugin.apiserver.pod_objects import ENDED

MIB = 1 << 20
INIT, SIDECAR, APP = "init", "sidecar", "app"
VCUDA, HAMI = "vgpu", "hami"  #: the dialects in which decisions are written
NODE_POLICIES = ("hami.io/node-scheduler-policy", "nvidia.com/node-scheduler-policy")


class Names(NamedTuple):
    """Two resources by which a share is asked for; `unit` is the bytes of one unit of memory."""

    cores: str
    memory: str
    unit: int


DEFAULT_NAMES = (
    Names("tencent.com/vcuda-core", "tencent.com/vcuda-memory", 256 * MIB),
    Names("nvidia.com/vcuda-core", "nvidia.com/vcuda-memory", MIB),
)
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Part:
    """One container: `gpus` different cards with `cores` percent and `memory` bytes of each; 100 cores: whole cards.

    `total` is the least that whole cards must have together, `percent` the memory of each card in percent. `split`:
    what the spec leaves out is a vGPU's part of a card.
    """

    name: str
    kind: str
    gpus: int
    cores: int
    memory: int = 0
    total: int = 0
    percent: int = 0
    split: bool = False


@dataclass(frozen=True)
class Demand:
    """What decides about a pod's cards. Two pods with equal demands get equal answers."""

    parts: tuple[Part, ...]
    wishes: tuple[tuple[str, Any], ...] = ()
    dialect: str = VCUDA
    node_policy: str = ""

    def to_wishes(self) -> Wishes:
        return Wishes(**dict(self.wishes))


@dataclass
class PodSpec:
    """A pod as the watch showed it. `demand` is None where it asks for no card, `error` says why it cannot be read."""

    uid: str
    namespace: str
    name: str
    node: str
    phase: str
    priority: int
    created: str
    version: str
    demand: Demand | None
    error: str
    pod: Pod
    deleted: bool = False
    foreign: tuple[str, ...] = field(default=())  #: keys of placements in other dialects than the demand's

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    def label(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse(value: Any, names: tuple[Names, ...] = DEFAULT_NAMES, gpu: str = GPU) -> PodSpec | None:
    """The pod in an object of the API server; None where it asks for no card, or is no pod."""
    wanted = frozenset({gpu, *(one.cores for one in names), *(one.memory for one in names)})
    found = pod_objects.parse(value, wanted | {*resources.MEMORY, *resources.PERCENT, *resources.CORES})
    if found is None or not found.requests_cards:
        return None
    spec, meta = value.get("spec") or {}, value.get("metadata") or {}
    demand, error = None, ""
    try:
        demand = _demand(found.pod, spec, names, gpu)
    except VgpuError as problem:
        error = str(problem)
    if demand is None and not error:
        return None
    priority = spec.get("priority")
    return PodSpec(
        found.pod.uid, found.pod.namespace, found.pod.name, found.pod.node, found.phase,
        priority if type(priority) is int else 0, str(meta.get("creationTimestamp") or ""), found.version, demand,
        error,
        found.pod, bool(meta.get("deletionTimestamp")), _placement_keys(found.annotations),
    )  # fmt: skip


def _placement_keys(annotations: dict[str, str]) -> tuple[str, ...]:
    keys = (
        placements.OWN, placements.OWN_NODE, placements.HAMI, placements.HAMI_NODE, placements.VOLCANO,
        placements.VOLCANO_NODE, placements.MANAGER, placements.MANAGER_REAL, placements.MANAGER_NODE,
        f"tencent.com/{placements.PREDICATE_NODE}", "hami.io/vgpu-devices-to-allocate",
    )  # fmt: skip
    return tuple(sorted(key for key in annotations if key in keys or f"/{placements.PREDICATE_INDEX}" in key))


def _demand(pod: Pod, spec: dict[str, Any], names: tuple[Names, ...], gpu: str) -> Demand | None:
    kinds = _kinds(spec)
    parts, dialects = [], set()
    for name in pod.names():
        part, dialect = _part(name, kinds.get(name, APP), pod.limits.get(name, {}), names, gpu)
        if part is not None:
            parts.append(part)
            dialects.add(dialect)
    if len(dialects) > 1:
        raise VgpuError("the pod's limits", expected="cores and memory of one kind", found="vcuda's and HAMi's")
    if not parts:
        return None
    wishes = request.wishes_from(pod.annotations)
    fields = tuple((name, getattr(wishes, name)) for name in Wishes.__slots__ if name != "priority")
    return Demand(tuple(parts), fields, dialects.pop(), _node_policy(pod.annotations, wishes.policy))


def _node_policy(annotations: dict[str, str], otherwise: str) -> str:
    named = next((annotations[key] for key in NODE_POLICIES if key in annotations), "")
    return named if named in ("binpack", "spread") else otherwise


def _kinds(spec: dict[str, Any]) -> dict[str, str]:
    listed = spec.get("initContainers")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item.get("name")): SIDECAR if item.get("restartPolicy") == "Always" else INIT for item in items}


def _part(name: str, kind: str, limits: dict[str, int], names: tuple[Names, ...], gpu: str) -> tuple[Part | None, str]:
    asked = [one for one in names if limits.get(one.cores) or limits.get(one.memory)]
    if len(asked) > 1 or (asked and limits.get(gpu)):
        found = ", ".join(sorted(limits))
        raise VgpuError(f"container {name}: limits", expected="the resources of one kind", found=found)
    if asked:
        return _vcuda(name, kind, limits, asked[0]), VCUDA
    return (_gpu(name, kind, limits, limits[gpu]), HAMI) if limits.get(gpu) else _alone(name, limits)


def _alone(name: str, limits: dict[str, int]) -> tuple[Part | None, str]:
    amounts = resources.spec_amounts(limits)
    if amounts.cores or amounts.memory or amounts.percent:
        raise VgpuError(f"container {name}: limits", expected=f"{GPU} beside its memory and cores", found="no number")
    return None, ""


def _vcuda(name: str, kind: str, limits: dict[str, int], one: Names) -> Part:
    cores, memory = limits.get(one.cores, 0), limits.get(one.memory, 0) * one.unit
    if not cores:
        raise VgpuError(f"container {name}: {one.cores}", expected=f"cores beside {one.memory}", found="none")
    cards, each = request.split_cores(cores, 0, f"container {name}: {one.cores}")
    if memory > request.MAX_SIZE or cards > WHOLE_CARD * 10:
        raise VgpuError(f"container {name}: limits", expected="amounts that a node can have", found=str(limits))
    if each < WHOLE_CARD and not memory:
        do = "a share needs limits for both resources"
        raise VgpuError(f"container {name}: {one.memory}", expected=f"memory beside {one.cores}", found="none", do=do)
    return Part(name, kind, cards, each, memory if each < WHOLE_CARD else 0, memory if each >= WHOLE_CARD else 0)


def _gpu(name: str, kind: str, limits: dict[str, int], count: int) -> Part:
    amounts = resources.spec_amounts(limits)
    if count > WHOLE_CARD * 10:
        raise VgpuError(f"container {name}: {GPU}", expected="a number that a node can have", found=count)
    return Part(name, kind, count, amounts.cores, amounts.memory, 0, amounts.percent, True)

"""The answers that schedulers wait for: a pod has its devices or will never have them; a lock of the node is released.

Belongs here: which annotations and labels to patch, per dialect, given a pod, its outcome, and the node's annotations.
Pure: vgpu.plugin.apiserver.handover reads from claims and grants whether a pod has its devices, and
vgpu.plugin.apiserver.agent sends the patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from vgpu.config.dialects import placements
from vgpu.plugin.apiserver.pod_objects import PodObject

ALLOCATING, SUCCESS, FAILED = "allocating", "success", "failed"
SECOND = 10**9
LOCK_LIFE = 300 * SECOND  #: the age at which schedulers themselves consider a lock abandoned
FINISHED = str((1 << 64) - 1)  #: the time that Volcano gives a pod that is done
OWN_ASSIGNED = "vgpu.io/assigned"
ASSIGNED = "gpu-assigned"
TYDIC_PHASE, TYDIC_TIME, TYDIC_LOCK = "tydic.io/bind-phase", "tydic.io/bind-time", "tydic.io/node-lock"
HAMI_PHASE, HAMI_TIME, HAMI_LOCK = "hami.io/bind-phase", "hami.io/bind-time", "hami.io/mutex.lock"
HAMI_OPEN = "hami.io/vgpu-devices-to-allocate"
VOLCANO_PHASE, VOLCANO_TIME = "volcano.sh/bind-phase", "volcano.sh/bind-time"
VOLCANO_OPEN, VOLCANO_WHEN = "volcano.sh/devices-to-allocate", "volcano.sh/vgpu-time"
VOLCANO_LOCKS = ("volcano.sh/mutex.lock", "hamivgpu")
MANAGER_PHASE = "nvidia.com/assigned-phase"

Texts = dict[str, str]
Patch = tuple[Texts, Texts]  #: annotations and labels to set


def enabled(dialects: Iterable[str]) -> frozenset[str]:
    """`dialects`, with `all` replaced by every dialect."""
    named = frozenset(dialects)
    return frozenset(placements.READERS) if placements.ALL in named else named


def due(pod: PodObject, handed_over: bool, dialects: frozenset[str]) -> Patch:
    """What to set on `pod`; nothing until its devices were handed over, or the pod has failed without them.

    kubelet allocates for all containers of a pod before it starts the first one. So one container that has its devices
    proves that the whole pod has.
    """
    annotations: Texts = {}
    labels: Texts = {}
    if handed_over or pod.phase == FAILED.capitalize():
        for name, answer in _ANSWERS.items():
            if name in dialects:
                more = answer(pod, handed_over)
                annotations.update(more[0])
                labels.update(more[1])
    return annotations, labels


def awaits_answer(pod: PodObject, dialects: frozenset[str]) -> bool:
    """Whether a scheduler still waits for an answer about `pod`."""
    return any(due(pod, True, dialects))


def _own(pod: PodObject, handed_over: bool) -> Patch:
    waits = placements.OWN in pod.annotations and pod.annotations.get(OWN_ASSIGNED) != "true"
    return ({OWN_ASSIGNED: "true"}, {}) if waits and handed_over else ({}, {})


def _tencent(pod: PodObject, handed_over: bool) -> Patch:
    return _assigned(pod, "tencent.com/", handed_over), {}


def _nvidia(pod: PodObject, handed_over: bool) -> Patch:
    labels = {}
    if pod.labels.get(TYDIC_PHASE) == ALLOCATING:
        labels[TYDIC_PHASE] = SUCCESS if handed_over else FAILED
    return _assigned(pod, "nvidia.com/", handed_over), labels


def _assigned(pod: PodObject, prefix: str, handed_over: bool) -> Texts:
    key = prefix + ASSIGNED
    return {key: "true"} if handed_over and pod.annotations.get(key) == "false" else {}


def _hami(pod: PodObject, handed_over: bool) -> Patch:
    """Only when the pod waits for no other vendor's devices: that vendor's plugin finds the pod by its bind phase."""
    if not _hami_waits(pod):
        return {}, {}
    if not handed_over:
        return {HAMI_PHASE: FAILED}, {}
    parts = pod.annotations.get(HAMI_OPEN, "").count(";")
    return {HAMI_PHASE: SUCCESS, HAMI_OPEN: ";" * parts}, {}


def _hami_waits(pod: PodObject) -> bool:
    annotations = pod.annotations
    others = [key for key in annotations if key.startswith("hami.io/") and key.endswith("-devices-to-allocate")]
    foreign = any("," in annotations[key] for key in others if key != HAMI_OPEN)
    return annotations.get(HAMI_PHASE) == ALLOCATING and bool(annotations.get(placements.HAMI)) and not foreign


def _volcano(pod: PodObject, handed_over: bool) -> Patch:
    if pod.annotations.get(VOLCANO_PHASE) != ALLOCATING or not pod.annotations.get(placements.VOLCANO):
        return {}, {}
    if not handed_over:
        return {VOLCANO_PHASE: FAILED}, {}
    parts = pod.annotations.get(VOLCANO_OPEN, "").count(";")
    return {VOLCANO_PHASE: SUCCESS, VOLCANO_OPEN: ";" * parts, VOLCANO_WHEN: FINISHED}, {}


def _manager(pod: PodObject, handed_over: bool) -> Patch:
    """The answer repeats the cards that the scheduler chose: the hook gives a container no others."""
    chosen = pod.annotations.get(placements.MANAGER)
    if not chosen or pod.labels.get(MANAGER_PHASE) not in ("filtering", ALLOCATING):
        return {}, {}
    if not handed_over:
        return {}, {MANAGER_PHASE: FAILED}
    return {placements.MANAGER_REAL: chosen}, {MANAGER_PHASE: "succeed"}


_ANSWERS: dict[str, Callable[[PodObject, bool], Patch]] = {
    "vgpu": _own, "tencent": _tencent, "nvidia": _nvidia, "hami": _hami, "volcano": _volcano, "vgpu-manager": _manager,
}  # fmt: skip


# Locks of the node. This plugin needs none, because it matches no Allocate with a pod. A lock that stays held delays
# the next pod by minutes.


def may_lock(pod: PodObject, dialects: frozenset[str]) -> bool:
    """Whether one of the node's locks may still be held for `pod`, which is bound to this node."""
    return any(_bind_time(pod, key) for name, key in _LOCKS if name in dialects)


def held_locks(node: Texts, pods: list[PodObject], dialects: frozenset[str]) -> list[str]:
    """The lock annotations of the node, in `node`, that were taken for one of `pods`."""
    return [
        key for name, key in _LOCKS
        if name in dialects and node.get(key) and any(_locked_for(node[key], pod, key) for pod in pods)
    ]  # fmt: skip


_LOCKS = (("hami", HAMI_LOCK), *(("volcano", key) for key in VOLCANO_LOCKS), ("nvidia", TYDIC_LOCK))


def _locked_for(lock: str, pod: PodObject, key: str) -> bool:
    """Whether `lock` was taken for `pod`.

    HAMi's lock names its pod; the other locks only contain a time. A lock that was taken at most LOCK_LIFE before the
    pod was bound was taken for that pod, because the node has one lock and the pod's scheduler held it then.
    """
    named = lock.split(",")
    if len(named) == 3:
        return (named[1], named[2]) == (pod.pod.namespace, pod.pod.name) and bool(_bind_time(pod, key))
    taken, bound = _lock_time(lock), _bind_time(pod, key)
    return 0 < taken <= bound < taken + LOCK_LIFE


def _bind_time(pod: PodObject, key: str) -> int:
    """When the scheduler of the lock `key` bound `pod`, in nanoseconds; 0 if it did not, or has its answer."""
    if key == TYDIC_LOCK:
        return _number(pod.labels.get(TYDIC_TIME, "")) if pod.labels.get(TYDIC_PHASE) == ALLOCATING else 0
    if key == HAMI_LOCK:
        return _number(pod.annotations.get(HAMI_TIME, "")) * SECOND if _hami_waits(pod) else 0
    waits = pod.annotations.get(VOLCANO_PHASE) == ALLOCATING and pod.annotations.get(placements.VOLCANO)
    return _number(pod.annotations.get(VOLCANO_TIME, "")) * SECOND if waits else 0


def _lock_time(text: str) -> int:
    """Nanoseconds from a text in RFC 3339 or in nanoseconds; 0 for anything else."""
    if _number(text):
        return _number(text)
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int((when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()) * SECOND


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0

"""The answers that schedulers wait for: pods whose devices were handed over, or never will be, and locks of the node.

Belongs here: what to patch, per dialect, from what is seen: a pod and its fate, the node's annotations. Pure; whether
devices were handed over is read off claims (vgpu.plugin.apiserver.handover), the patching is done by the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from vgpu.config.dialects import placements
from vgpu.plugin.apiserver.pod_objects import Seen

ALLOCATING, SUCCESS, FAILED = "allocating", "success", "failed"
SECOND = 10**9
LOCK_LIFE = 300 * SECOND  #: after which schedulers themselves take a lock for left behind
FINISHED = str((1 << 64) - 1)  #: Volcano's time of a pod that is through
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
    """`dialects` with `all` spelled out."""
    named = frozenset(dialects)
    return frozenset(placements.READERS) if placements.ALL in named else named


def due(pod: Seen, handed_over: bool, dialects: frozenset[str]) -> Patch:
    """What to set on `pod`: nothing until its devices were handed over, or it has failed without them.

    Before the first of a pod's containers starts, kubelet has allocated for all of them: one that has its devices
    speaks for the pod.
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


def open_for(pod: Seen, dialects: frozenset[str]) -> bool:
    """Whether a scheduler still waits for word of `pod`."""
    return any(due(pod, True, dialects))


def _own(pod: Seen, handed_over: bool) -> Patch:
    waits = placements.OWN in pod.annotations and pod.annotations.get(OWN_ASSIGNED) != "true"
    return ({OWN_ASSIGNED: "true"}, {}) if waits and handed_over else ({}, {})


def _tencent(pod: Seen, handed_over: bool) -> Patch:
    return _assigned(pod, "tencent.com/", handed_over), {}


def _nvidia(pod: Seen, handed_over: bool) -> Patch:
    labels = {}
    if pod.labels.get(TYDIC_PHASE) == ALLOCATING:
        labels[TYDIC_PHASE] = SUCCESS if handed_over else FAILED
    return _assigned(pod, "nvidia.com/", handed_over), labels


def _assigned(pod: Seen, prefix: str, handed_over: bool) -> Texts:
    key = prefix + ASSIGNED
    return {key: "true"} if handed_over and pod.annotations.get(key) == "false" else {}


def _hami(pod: Seen, handed_over: bool) -> Patch:
    """Once no other vendor's devices of the pod are open: their plugin finds the pod by what we would end."""
    if not _hami_waits(pod):
        return {}, {}
    if not handed_over:
        return {HAMI_PHASE: FAILED}, {}
    parts = pod.annotations.get(HAMI_OPEN, "").count(";")
    return {HAMI_PHASE: SUCCESS, HAMI_OPEN: ";" * parts}, {}


def _hami_waits(pod: Seen) -> bool:
    annotations = pod.annotations
    others = [key for key in annotations if key.startswith("hami.io/") and key.endswith("-devices-to-allocate")]
    foreign = any("," in annotations[key] for key in others if key != HAMI_OPEN)
    return annotations.get(HAMI_PHASE) == ALLOCATING and bool(annotations.get(placements.HAMI)) and not foreign


def _volcano(pod: Seen, handed_over: bool) -> Patch:
    if pod.annotations.get(VOLCANO_PHASE) != ALLOCATING or not pod.annotations.get(placements.VOLCANO):
        return {}, {}
    if not handed_over:
        return {VOLCANO_PHASE: FAILED}, {}
    parts = pod.annotations.get(VOLCANO_OPEN, "").count(";")
    return {VOLCANO_PHASE: SUCCESS, VOLCANO_OPEN: ";" * parts, VOLCANO_WHEN: FINISHED}, {}


def _manager(pod: Seen, handed_over: bool) -> Patch:
    """The cards are those that were chosen beforehand: no start ever gets others."""
    chosen = pod.annotations.get(placements.MANAGER)
    if not chosen or pod.labels.get(MANAGER_PHASE) not in ("filtering", ALLOCATING):
        return {}, {}
    if not handed_over:
        return {}, {MANAGER_PHASE: FAILED}
    return {placements.MANAGER_REAL: chosen}, {MANAGER_PHASE: "succeed"}


_ANSWERS: dict[str, Callable[[Seen, bool], Patch]] = {
    "vgpu": _own, "tencent": _tencent, "nvidia": _nvidia, "hami": _hami, "volcano": _volcano, "vgpu-manager": _manager,
}  # fmt: skip


# Locks of the node. We need none: no Allocate is paired with a pod. Held on, each stops the next pod for minutes.


def may_lock(pod: Seen, dialects: frozenset[str]) -> bool:
    """Whether `pod`, which is bound to this node, may still be what one of the node's locks was taken for."""
    return any(_bind_time(pod, key) for name, key in _LOCKS if name in dialects)


def held_locks(node: Texts, pods: list[Seen], dialects: frozenset[str]) -> list[str]:
    """The lock annotations of the node, in `node`, that were taken for one of `pods`."""
    return [
        key for name, key in _LOCKS
        if name in dialects and node.get(key) and any(_locked_for(node[key], pod, key) for pod in pods)
    ]  # fmt: skip


_LOCKS = (("hami", HAMI_LOCK), *(("volcano", key) for key in VOLCANO_LOCKS), ("nvidia", TYDIC_LOCK))


def _locked_for(lock: str, pod: Seen, key: str) -> bool:
    """HAMi's lock names its pod. The others have but a time: a lock that was taken before the pod was bound, and not
    long before, was taken for it, for it is one lock and the pod's scheduler held it then."""
    named = lock.split(",")
    if len(named) == 3:
        return (named[1], named[2]) == (pod.pod.namespace, pod.pod.name) and bool(_bind_time(pod, key))
    taken, bound = _lock_time(lock), _bind_time(pod, key)
    return 0 < taken <= bound < taken + LOCK_LIFE


def _bind_time(pod: Seen, key: str) -> int:
    """When the scheduler that has the lock `key` bound `pod`, in nanoseconds; 0 where it did not, or has its answer."""
    if key == TYDIC_LOCK:
        return _number(pod.labels.get(TYDIC_TIME, "")) if pod.labels.get(TYDIC_PHASE) == ALLOCATING else 0
    if key == HAMI_LOCK:
        return _number(pod.annotations.get(HAMI_TIME, "")) * SECOND if _hami_waits(pod) else 0
    waits = pod.annotations.get(VOLCANO_PHASE) == ALLOCATING and pod.annotations.get(placements.VOLCANO)
    return _number(pod.annotations.get(VOLCANO_TIME, "")) * SECOND if waits else 0


def _lock_time(text: str) -> int:
    """Nanoseconds, of RFC 3339 or as they stand; 0 for anything else."""
    if _number(text):
        return _number(text)
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int((when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()) * SECOND


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0

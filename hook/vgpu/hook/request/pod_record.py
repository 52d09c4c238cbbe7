"""The pod's record, which the plugin keeps: what a start needs beyond what its runtime passes on.

Belongs here: reading the record, waiting for it where it is about to come, and completing the wanted grants with it:
wishes, the schedulers' choice for this container, the limits in the pod's spec. Not here: which of these counts
(vgpu.hook.request.resolve_grants). This runs before the hook takes the ledger's lock, so that a wait delays no other
start.
"""

from __future__ import annotations

import fcntl
import os
import time

from vgpu.config import paths, pods, request
from vgpu.config.dialects import placements
from vgpu.config.dialects.placements import Choice
from vgpu.config.grants import Holder
from vgpu.config.pods import Pod
from vgpu.config.settings import Settings
from vgpu.hook.request import ignored_annotations
from vgpu.hook.request.resolve_grants import WantedGrants

TIMEOUT = 3.0  #: seconds; the plugin's watch may lag behind kubelet, but not for long
PAUSE = 0.01


def complete(
    wanted: WantedGrants, holder: Holder, annotations: dict[str, str], settings: Settings
) -> tuple[WantedGrants, list[str]]:
    """`wanted` completed from the pod's record, or from the runtime's `annotations` where there is no record; and notes
    for the log.
    """
    pod = record_of(settings.run_dir, holder.pod_uid)
    merged = {**annotations, **pod.annotations} if pod else annotations
    known = pod or Pod(holder.pod_uid, "", "", settings.node, [], [], merged, {})
    name = container_name(known, holder)
    limits = known.limits.get(name, {}) if pod and name else None
    wishes = request.wishes_from(merged, (limits or {}).get(request.PRIORITIES[-1], request.LOW_PRIORITY))
    ceiling = request.core_limit_wish(merged)
    dialects = settings.texts("kubernetes.dialects")
    choices: tuple[Choice, ...] = ()
    notes = ignored_annotations.in_pod(merged) + ([] if pod else ignored_annotations.not_known(annotations))
    if not placements.read(known, dialects):
        notes += [_UNREADABLE] if not pod and dialects and placements.by_index(merged) else []
    elif not name:
        notes.append(_UNNAMED)
    else:
        choices = tuple(placements.choices(known, name, known.node, dialects))
    return WantedGrants(wanted.ids, ceiling, wishes, choices, limits), notes


_UNREADABLE = "ignoring the scheduler's choice of cards: it numbers the containers, and the pod's record is missing"
_UNNAMED = "ignoring the scheduler's choice of cards: the runtime does not pass on the container's name"


def container_name(pod: Pod, holder: Holder) -> str:
    """The container's name: from the runtime, or that of the pod's only container, or ""."""
    names = pod.names()
    return holder.container or (names[0] if len(names) == 1 else "")


def record_of(run_dir: str, uid: str, timeout: float = TIMEOUT) -> Pod | None:
    """The pod's record; None when there is none and no plugin is about to write it. VgpuError for a damaged one."""
    end = time.monotonic() + timeout
    while True:
        try:
            return pods.read(run_dir, uid)
        except FileNotFoundError:
            pass
        if "-" not in uid or time.monotonic() > end or not watched(run_dir):
            return None  # a static pod's uid is a hash: no scheduler places it, and its record has another uid
        time.sleep(PAUSE)


def watched(run_dir: str) -> bool:
    """Whether a plugin follows the API server now. It holds the lock while its watch is alive."""
    try:
        fd = os.open(paths.pods_watched(run_dir), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False

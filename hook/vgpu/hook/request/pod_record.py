"""What a start needs to know of its pod beyond what its runtime passes on: the record that the plugin keeps.

Belongs here: reading it, waiting for it where it is bound to come, and completing a redemption by it: wishes, the
schedulers' choice for this very container, the limits in the pod's spec. Runs before the ledger's lock is taken, so
that a wait holds up nobody else. Whose word counts for what is vgpu.hook.request.resolve_grants's.
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
from vgpu.hook.request.resolve_grants import WantedGrants

PATIENCE = 3.0  #: seconds; the plugin's watch may lag behind kubelet, but not for long
PAUSE = 0.01


def complete(
    wanted: WantedGrants, holder: Holder, annotations: dict[str, str], settings: Settings
) -> tuple[WantedGrants, list[str]]:
    """The redemption of the same grants with what the pod's record says, or where there is none the runtime's
    `annotations`; and notes.
    """
    pod = record_of(settings.run_dir, holder.pod_uid)
    told = {**annotations, **pod.annotations} if pod else annotations
    known = pod or Pod(holder.pod_uid, "", "", settings.node, [], [], told, {})
    name = container_name(known, holder)
    limits = known.limits.get(name, {}) if pod and name else None
    wishes = request.wishes_from(told, (limits or {}).get(request.PRIORITIES[-1], request.LOW_PRIORITY))
    ceiling = request.core_limit_wish(told)
    dialects = settings.texts("kubernetes.dialects")
    choices: tuple[Choice, ...] = ()
    notes = []
    if not placements.read(known, dialects):
        notes = [_UNREADABLE] if not pod and dialects and placements.by_index(told) else []
    elif not name:
        notes = [_UNNAMED]
    else:
        choices = tuple(placements.choices(known, name, known.node, dialects))
    return WantedGrants(wanted.ids, ceiling, wishes, choices, limits), notes


_UNREADABLE = "the scheduler's choice of cards is left aside: it counts containers, which the pod's record alone tells"
_UNNAMED = "the scheduler's choice of cards is left aside: the runtime does not tell the container's name"


def container_name(pod: Pod, holder: Holder) -> str:
    """The container's name, where the runtime does not tell it that of a pod's only container, else ""."""
    names = pod.names()
    return holder.container or (names[0] if len(names) == 1 else "")


def record_of(run_dir: str, uid: str, patience: float = PATIENCE) -> Pod | None:
    """The pod's record; None when there is none and nobody is about to write it. VgpuError for a damaged one."""
    end = time.monotonic() + patience
    while True:
        try:
            return pods.read(run_dir, uid)
        except FileNotFoundError:
            pass
        if "-" not in uid or time.monotonic() > end or not watched(run_dir):
            return None  # a static pod's uid is a hash: no scheduler places it, and its record has another
        time.sleep(PAUSE)


def watched(run_dir: str) -> bool:
    """Whether a plugin follows the API server at this moment: it holds the lock while its watch is alive."""
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

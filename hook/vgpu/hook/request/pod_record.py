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

from vgpu.config import grants, paths, pods, request
from vgpu.config.grants import Holder
from vgpu.config.pods import Pod
from vgpu.config.settings import Settings
from vgpu.hook.request.resolve_grants import WantedGrants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.config.dialects.placements import Choice

READ_BY_SOMEBODY = ("vgpu.io/", "tencent.com/", "nvidia.com/", "hami.io/", "volcano.sh/")
NOT_KNOWN = (
    "the pod's annotations are not known: there is no record of the pod (no API access), and the runtime passes none "
    "on; a core limit or another wish in them has no effect"
)
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
    choices: tuple[Choice, ...] = ()
    notes = [] if pod else not_known(annotations)
    if grants.are_not_all(merged):
        from vgpu.hook.request import ignored_annotations  # noqa: PLC0415

        choices, unread = _chosen(known, name, pod is not None, settings.texts("kubernetes.dialects"))
        notes = [*ignored_annotations.in_pod(merged), *notes, *unread]
    return WantedGrants(wanted.ids, request.core_limit_wish(merged), wishes, choices, limits), notes


def _chosen(pod: Pod, name: str, recorded: bool, dialects: list[str]) -> tuple[tuple[Choice, ...], list[str]]:
    """The schedulers' choices for the container `name`, and a note where one of them cannot be read."""
    from vgpu.config.dialects import placements  # noqa: PLC0415

    if not placements.read(pod, dialects):
        return (), [_UNREADABLE] if not recorded and dialects and placements.by_index(pod.annotations) else []
    return (tuple(placements.choices(pod, name, pod.node, dialects)), []) if name else ((), [_UNNAMED])


def not_known(annotations: dict[str, str]) -> list[str]:
    """A note where the runtime's `annotations` have none of a pod's own, and there is no record of the pod."""
    passed = [key for key in annotations if key.startswith(READ_BY_SOMEBODY) and key not in grants.ANNOTATIONS.values()]
    return [] if passed else [NOT_KNOWN]


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

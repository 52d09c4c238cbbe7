"""Incidents: what happened to containers of late that their users should know, in vgpud's record of its last round.

Belongs here: the record's form and its reading. Not here: what is one (vgpu.node.daemon.incidents), and whom the
device plugin tells (vgpu.plugin.apiserver.pod_incidents).
"""

from __future__ import annotations

OVER_LIMIT = "over-limit"  #: NVML names more memory for the container than its limit: it goes past libvcuda
STOPPED = "stopped"  #: the same, and vgpud has killed the container (limits.enforcement: kill)
OUT_OF_MEMORY = "out-of-memory"  #: libvcuda has refused allocations, as the container reports
LOCK_FLOOD = "lock-flood"  #: it holds very many locks on a card's presence file, so that others take no turns
UNLIMITED_PROCESS = "unlimited-process"  #: processes use the card without libvcuda
UNCOVERED = "uncovered"  #: the image has a copy of libcuda that the hook could not cover
KINDS = (OVER_LIMIT, STOPPED, OUT_OF_MEMORY, LOCK_FLOOD, UNLIMITED_PROCESS, UNCOVERED)
FIELDS = ("kind", "container", "pod_uid", "container_name", "uuid", "limit", "amount", "at")


class Incident:
    """An incident of the container `container` on the card `uuid`.

    `pod_uid` and `container_name` are those of its pod, "" outside Kubernetes. `limit` is the memory limit in bytes.
    `amount` is bytes in use, or the number of refused allocations for OUT_OF_MEMORY, of locks for LOCK_FLOOD, of
    processes or of copies. `at` is when it was seen last, in seconds since 1970. `detail` is what was found, for the
    last two kinds: the library that a process has loaded, or the hook's line.
    """

    __slots__ = (*FIELDS, "detail")

    def __init__(
        self,
        kind: str,
        container: str,
        pod_uid: str,
        container_name: str,
        uuid: str,
        limit: int,
        amount: int,
        at: float,
        detail: str = "",
    ) -> None:
        self.kind = kind
        self.container = container
        self.pod_uid = pod_uid
        self.container_name = container_name
        self.uuid = uuid
        self.limit = limit
        self.amount = amount
        self.at = at
        self.detail = detail

    def record(self) -> dict[str, object]:
        return {**{name: getattr(self, name) for name in FIELDS}, **({"detail": self.detail} if self.detail else {})}


def of_record(record: dict[str, object]) -> list[Incident]:
    """The incidents in the record of a round. One that this version cannot read is left out: vgpud may be newer."""
    items = record.get("incidents")
    return [found for found in map(_incident, items if isinstance(items, list) else []) if found is not None]


def _incident(item: object) -> Incident | None:
    if not isinstance(item, dict) or item.get("kind") not in KINDS:
        return None
    texts = [value for value in map(item.get, FIELDS[:5]) if isinstance(value, str)]
    numbers = [
        value for value in map(item.get, FIELDS[5:]) if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    if len(texts) != 5 or len(numbers) != 3:
        return None
    kind, container, pod_uid, container_name, uuid = texts
    limit, amount, at = numbers
    detail = str(item.get("detail", ""))
    return Incident(kind, container, pod_uid, container_name, uuid, int(limit), int(amount), float(at), detail)

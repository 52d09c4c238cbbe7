"""What happened to a pod's containers on their cards: a notice for each, which becomes an event on the pod.

Belongs here: the words for an incident of vgpud's record and for a faulty card, and how often one is repeated: an event
an hour at most for each reason and container. Pure. vgpu.plugin.apiserver.agent writes the events. What an incident is
belongs to vgpu.node.daemon.incidents, when a card is faulty to vgpu.node.cards.health_rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vgpu.config.claims import Claim
from vgpu.config.incidents import (
    LOCK_FLOOD,
    OUT_OF_MEMORY,
    OVER_LIMIT,
    STOPPED,
    UNCOVERED,
    UNLIMITED_PROCESS,
    Incident,
)
from vgpu.plugin.apiserver.pod_complaints import Complaint

HOUR = 3600.0  #: seconds between two events of one reason and container; an API server keeps events for as long
MEMORY_LIMIT_EXCEEDED, KILLED_FOR_MEMORY = "MemoryLimitExceeded", "KilledForMemory"
OUT_OF_CARD_MEMORY, CARD_FAULT = "OutOfCardMemory", "CardFault"
LIMITER_BYPASSED, DRIVER_COPY_NOT_COVERED = "LimiterBypassed", "DriverCopyNotCovered"
REASONS = {
    OVER_LIMIT: MEMORY_LIMIT_EXCEEDED, STOPPED: KILLED_FOR_MEMORY, OUT_OF_MEMORY: OUT_OF_CARD_MEMORY,
    UNLIMITED_PROCESS: LIMITER_BYPASSED, UNCOVERED: DRIVER_COPY_NOT_COVERED,
    LOCK_FLOOD: "LockFlood",
}  # fmt: skip
MIB = 1 << 20


class Notice(NamedTuple):
    """`subject` is the container, and for a fault its card. `content` is what makes another event of the same reason
    and subject. `at` is when it happened, in seconds since 1970.
    """

    pod_uid: str
    subject: str
    complaint: Complaint
    content: str
    at: float


def of_incidents(incidents: Iterable[Incident]) -> Iterator[Notice]:
    """A notice for each incident of a pod's container. In another hour it has another content."""
    for one in incidents:
        if one.pod_uid:
            complaint = Complaint(REASONS[one.kind], _text(one))
            yield Notice(one.pod_uid, _name(one.container_name, one.container), complaint, str(one.at // HOUR), one.at)


def of_faults(claims: Iterable[Claim], faults: dict[str, str], at: float) -> Iterator[Notice]:
    """A notice for each pod's container on a faulty card. `faults`: card uuid -> card and fault in words."""
    for claim in claims:
        for card in claim.cards:
            if claim.holder and card.uuid in faults:
                name = _name(claim.holder.container, claim.container)
                text = f"container {name} uses a card that is out of order: {faults[card.uuid]}"
                complaint = Complaint(CARD_FAULT, text)
                yield Notice(claim.holder.pod_uid, f"{name} {card.uuid}", complaint, text, at)


class Repeats:
    """Which notices are due: the first of a reason and subject, and after an hour another one."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str, str], tuple[str, float]] = {}

    def is_due(self, notice: Notice) -> bool:
        content, at = self._written.get(_key(notice), ("", notice.at - HOUR))
        return notice.content != content and abs(notice.at - at) >= HOUR

    def written(self, notice: Notice) -> None:
        self._written[_key(notice)] = notice.content, notice.at

    def forget(self, present: Iterable[Notice], now: float) -> None:
        """Forget what was written more than an hour ago and is not among the `present` notices."""
        keys = {_key(notice) for notice in present}
        self._written = {
            key: item for key, item in self._written.items() if key in keys or abs(now - item[1]) < HOUR
        }  # fmt: skip


def _key(notice: Notice) -> tuple[str, str, str]:
    return notice.pod_uid, notice.complaint.reason, notice.subject


def _name(container: str, identifier: str) -> str:
    """The container's name in its pod; where the runtime passes on none, the beginning of its id."""
    return container or identifier[:12]


def _text(one: Incident) -> str:
    name, limit = _name(one.container_name, one.container), f"{one.limit // MIB} MiB"
    if one.kind == OUT_OF_MEMORY:
        return (
            f"container {name} reports {one.amount} allocations that did not fit into its {limit} of memory on card "
            f"{one.uuid}"
        )
    if one.kind == LOCK_FLOOD:
        return (
            f"container {name} holds {one.amount} locks or more on the presence file of card {one.uuid}: the card's "
            "other containers take no turns meanwhile"
        )
    if one.kind == UNLIMITED_PROCESS:
        loaded = f"; one has loaded {one.detail}" if one.detail else ""
        return (
            f"container {name}: {one.amount} processes use card {one.uuid} without vgpu's libcuda, so no limit holds "
            f"for them{loaded}"
        )
    if one.kind == UNCOVERED:
        return f"container {name} may run without its limits: {one.detail}"
    past = f"container {name} holds {one.amount // MIB} MiB of card {one.uuid}, and its limit is {limit}"
    if one.kind == STOPPED:
        return f"{past}: vgpud has killed it (limits.enforcement: kill)"
    return f"{past}: its programs go past libvcuda"

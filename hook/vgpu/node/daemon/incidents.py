"""What happened to containers of late: the incidents that vgpud's record has for the device plugin's events.

Belongs here: noting an incident, keeping it for KEPT seconds after it was seen last, and finding new refusals in what
containers report. Does not belong here: what goes past a limit (vgpu.node.daemon.memory_watch), and the events, which
the device plugin writes. An incident outlives its container: one that vgpud has killed is in no later round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from vgpu.config.claims import Claim
from vgpu.config.incidents import OUT_OF_MEMORY, Incident
from vgpu.config.limits import UNLIMITED

KEPT = 600.0  #: seconds; the device plugin looks every 15 s, and may be away for a while
MOST = 256  #: incidents; the newest stay

Identity = tuple[str, str, int, int]  #: container, boot, init's pid and start time
Refusals = Callable[[str], "Mapping[str, int] | None"]


class Incidents:
    """`clock` returns seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._found: dict[tuple[str, str, str], Incident] = {}
        self._refusals: dict[Identity, dict[str, int]] = {}  # as last reported, by card uuid
        self._before: set[Identity] | None = None  # the containers of the time before vgpud's first look

    def note(self, kind: str, claim: Claim, uuid: str, amount: int, detail: str = "") -> None:
        """Remember an incident of this moment."""
        limit = next((card.memory for card in claim.cards if card.uuid == uuid), UNLIMITED)
        pod, name = (claim.holder.pod_uid, claim.holder.container) if claim.holder else ("", "")
        self._found.pop((kind, claim.container, uuid), None)  # the newest come last
        self._found[kind, claim.container, uuid] = Incident(
            kind, claim.container, pod, name, uuid, limit, amount, self.clock(), detail
        )

    def look_at_refusals(self, living: Iterable[Claim], refusals: Refusals) -> None:
        """Note each container whose count of refused allocations has grown. `refusals`: container -> count by card.

        None: the container's report is not known. The count of a container from the time before vgpud's start is no
        news when it is seen first.
        """
        claims = {_identity(claim): claim for claim in living}
        if self._before is None:
            self._before = set(claims)
        self._before &= set(claims)
        self._refusals = {key: counts for key, counts in self._refusals.items() if key in claims}
        for identity, claim in claims.items():
            counts = refusals(claim.container)
            if counts is None:
                continue
            earlier = self._refusals.get(identity, dict(counts) if identity in self._before else {})
            for uuid, count in counts.items():
                if count > earlier.get(uuid, 0):
                    self.note(OUT_OF_MEMORY, claim, uuid, count)
            self._refusals[identity] = dict(counts)

    def records(self) -> list[dict[str, object]]:
        """The incidents for the record of a round."""
        now = self.clock()
        kept = [(key, one) for key, one in self._found.items() if abs(now - one.at) <= KEPT]
        self._found = dict(kept[-MOST:])
        return [one.record() for one in self._found.values()]


def _identity(claim: Claim) -> Identity:
    return claim.container, claim.boot_id, claim.pid, claim.start_time

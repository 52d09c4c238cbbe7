"""What changes of containers cost each card, as the containers' libvcuda measures it while they run.

Belongs here: which of the containers' words is believed, and when a new figure is worth new schedules. Not here: the
measurement (libvcuda/src/compute/change_cost.c), and what a share loses by it (vgpu.config.core_schedule).

A container may say anything. The lower median of all containers of a card counts, within bounds: of two, none can make
the other pay for more than that one says, and a card on which most lie loses at most a 32nd, or 3 ms
for each container in 400.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

LEAST_NS, MOST_NS = 20_000, 1_500_000  #: as SLICE_CHANGE_LEAST and _MOST in libvcuda/src/compute/slice_parameters.h
FOR_EACH = 2  #: in a period a container's slice begins with a change, and its work comes in late as often
STEP_NS = 20_000  #: a figure that differs less from the present one changes no schedule


class ChangeCosts:
    """`by_card`: ns that the card loses for each container in a period. Cards that nobody has measured are left out."""

    def __init__(self) -> None:
        self.by_card: dict[str, int] = {}

    def note(self, reports: Iterable[Mapping[str, int]]) -> None:
        """Take over what containers said last: ns of a change of contexts by card."""
        said: dict[str, list[int]] = {}
        for report in reports:
            for card, change in report.items():
                said.setdefault(card, []).append(min(max(change, LEAST_NS), MOST_NS))
        for card, changes in said.items():
            cost = FOR_EACH * statistics.median_low(changes)
            if abs(cost - self.by_card.get(card, 0)) >= STEP_NS:
                self.by_card[card] = round(cost, -4)

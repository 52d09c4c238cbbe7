"""What containers say of their use of a card, against what the host sees of them by NVML.

Belongs here: both figures over time, and who is caught. Pure. NVML's figure is late (samples are up to 9 s old, of a
sixth of a second to a second each) and tells when a kernel ran, not how much of a card it took: so it is a mean over
many samples, it may be a third more than what was said at any time lately, and it is believed only then. Nobody is
caught for less: the bounds are wide because a container that is held back does not know why.
"""

from __future__ import annotations

import dataclasses

LOOKS = 6  #: that are averaged
LAG = 2  #: looks: what NVML shows now may have been then
MARGIN = 1.25  #: NVML may see so many times what is said,
POINTS = 10.0  #: and percent of the card on top
NARROWEST = 0.8  #: what is left of the share of one who is caught: bounded, for NVML may be wrong


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Percent of a card: what a container says, may use at most, and was seen to use."""

    said: float
    limit: float
    seen: float

    def describe(self) -> str:
        return f"says it uses {self.said:.0f} % of at most {self.limit:.0f} %, NVML sees {self.seen:.0f} %"

    @property
    def part(self) -> float:
        """Of its share, what is left to it."""
        return min(max(min(self.said, self.limit) / self.seen, NARROWEST), 1.0)


class UsageAudit:
    """One container on one card; a look at a time."""

    def __init__(self) -> None:
        self.said: list[float] = []
        self.limits: list[float] = []
        self.seen: list[float] = []

    def look(self, said: float, limit: float, seen: float) -> None:
        """Percent since the last look."""
        for history, value in ((self.said, said), (self.limits, limit), (self.seen, seen)):
            history.append(value)
            del history[: -LOOKS - LAG]

    def verdict(self) -> Verdict | None:
        """Not before there are enough looks; None also for one who may go on."""
        if len(self.seen) < LOOKS + LAG:
            return None
        seen = sum(self.seen[-LOOKS:]) / LOOKS
        said = max(self._mean(self.said, lag) for lag in range(LAG + 1))
        limit = max(self.limits)
        return Verdict(said, limit, seen) if seen > MARGIN * min(said, limit) + POINTS else None

    @staticmethod
    def _mean(values: list[float], lag: int) -> float:
        end = len(values) - lag
        return sum(values[end - LOOKS : end]) / LOOKS

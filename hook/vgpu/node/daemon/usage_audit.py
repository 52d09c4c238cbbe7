"""Compares the use of a card that a container reports with the use that NVML measures.

Belongs here: both figures over time, and the verdict. The module is pure. Does not belong here: reading the figures
(vgpu.node.daemon.usage_monitor), and the penalty (vgpu.node.daemon.lender).

NVML's figure is late: samples are up to 9 s old, and each covers a sixth of a second to a second. It measures when a
kernel ran, not how much of the card the kernel used. Therefore this module averages many samples, and compares the mean
with the greatest recent report, with a wide margin (MARGIN and POINTS). The margin is wide because a penalized
container cannot know why it is slow.
"""

from __future__ import annotations

import dataclasses

LOOKS = 6  #: measurements in a mean
LAG = 2  #: measurements by which NVML's figure may be late
MARGIN = 1.25  #: NVML's figure may be the reported one times this,
POINTS = 10.0  #: plus this many percent of the card
MIN_PART = 0.8  #: a penalty leaves at least this part of the share, because NVML may be wrong


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A container that uses more than it reports, in percent of a card: its report, its limit, and NVML's figure."""

    reported: float
    limit: float
    seen: float

    def describe(self) -> str:
        return f"reports {self.reported:.0f} % of at most {self.limit:.0f} %, but NVML measures {self.seen:.0f} %"

    @property
    def part(self) -> float:
        """The part of its share that the penalty leaves."""
        return min(max(min(self.reported, self.limit) / self.seen, MIN_PART), 1.0)


class UsageAudit:
    """The audit of one container on one card, one measurement after the other."""

    def __init__(self) -> None:
        self.reported: list[float] = []
        self.limits: list[float] = []
        self.seen: list[float] = []

    def look(self, reported: float, limit: float, seen: float) -> None:
        """Add a measurement: percent of the card since the last one."""
        for history, value in ((self.reported, reported), (self.limits, limit), (self.seen, seen)):
            history.append(value)
            del history[: -LOOKS - LAG]

    @property
    def has_enough(self) -> bool:
        """Whether there are enough measurements for a verdict."""
        return len(self.seen) >= LOOKS + LAG

    def verdict(self) -> Verdict | None:
        """The verdict; None if the figures agree, or if there are too few measurements."""
        if not self.has_enough:
            return None
        seen = sum(self.seen[-LOOKS:]) / LOOKS
        reported = max(self._mean(self.reported, lag) for lag in range(LAG + 1))
        limit = max(self.limits)
        return Verdict(reported, limit, seen) if seen > MARGIN * min(reported, limit) + POINTS else None

    @staticmethod
    def _mean(values: list[float], lag: int) -> float:
        end = len(values) - lag
        return sum(values[end - LOOKS : end]) / LOOKS

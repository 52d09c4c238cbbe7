"""Programs that pause: how much of the card they use, and how evenly, compared with the reference scheduler.

Tenants work in rounds of kernels with a gap of CPU time in between. Each cell is run under libvcuda, with hard and with
soft shares, without a limiter, and by the reference scheduler (cores_ideal.py). Runs differ by when the tenants begin.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant, jain
from cores_workers import Workers
from results import Result

ROUNDS = (500 * US, 2 * MS, 10 * MS)
GAPS = (100 * US, 500 * US, 900 * US, 1500 * US, 5 * MS)
FLOOD = 1  #: in place of a number of tenants: one tenant with gaps, beside one that floods the card
TENANTS = (2, 3, 4, FLOOD)
KERNEL = 100 * US
BEGIN = 500 * MS
WINDOW = 2 * SECOND
WHOLE_WINDOW = 5 * SECOND


@dataclasses.dataclass(frozen=True)
class Cell:
    round: int
    gap: int
    tenants: int

    def scenario(self, run: int, limiter: str = "libvcuda", is_soft: bool = False, window: int = WINDOW) -> Scenario:
        source = random.Random(run)
        limit = 100 if is_soft else 0
        count = max(self.tenants, 2)
        tenants = []
        for number in range(count):
            load: Load = {"kernel": f"fixed:{KERNEL}", "launches": self.round // KERNEL, "gap": self.gap}
            if self.tenants == FLOOD and number:
                load = {"kernel": f"fixed:{MS}", "wait": 0}
            tenants.append(Tenant(100 // count, [{**load, "begin": source.randrange(self.round + self.gap)}], limit))
        is_lent = is_soft and limiter == "libvcuda"
        return Scenario(tenants, (BEGIN, BEGIN + window), limiter, seed=run + 1, lender=is_lent)


def cells() -> list[Cell]:
    return [Cell(round_, gap, tenants) for round_ in ROUNDS for gap in GAPS for tenants in TENANTS]


def corners() -> list[Cell]:
    """The ends of both ranges, and some cells between them."""
    found = [Cell(round_, gap, tenants) for round_ in ROUNDS[::2] for gap in GAPS[::4] for tenants in (2, 4, FLOOD)]
    return [*found, Cell(2 * MS, 500 * US, 3), Cell(2 * MS, 900 * US, FLOOD), Cell(500 * US, 1500 * US, 2)]


def efficiency(got: Outcome, reference: Outcome) -> float:
    """Card time of all tenants, over that under the reference."""
    return sum(got.shares) / sum(reference.shares)


def evenness(got: Outcome, reference: Outcome) -> float:
    """Jain's index of what each tenant got, over what it gets under the reference."""
    return jain([one / of for one, of in zip(got.shares, reference.shares)])


def measure(
    workers: Workers, runs: int, asked: Sequence[Cell] = tuple(corners()), window: int = WINDOW
) -> list[Result]:
    hard, soft, ideal, free = (
        workers.by_run(runs, asked, lambda cell, run, mode=mode: cell.scenario(run, *mode, window))
        for mode in (("libvcuda", False), ("libvcuda", True), ("ideal", False), ("none", False))
    )
    shares = range(runs)
    least = [min(map(efficiency, hard[run], ideal[run])) for run in shares]
    lent = [min(map(efficiency, soft[run], free[run])) for run in shares]
    even = [min(map(evenness, hard[run], ideal[run])) for run in shares]
    what = f"{len(asked)} cells: rounds x gaps x equal tenants, or one beside a flood: "
    return [
        Result.at_least("cores.gaps.efficiency", 0.97, least, what + "card time used / under `ideal`, the lowest"),
        Result.at_least(
            "cores.gaps.efficiency_soft", 0.97, lent, what + "soft shares, / without a limiter, the lowest"
        ),
        Result.at_least("cores.gaps.jain", 0.99, even, what + "Jain's index of got / got under `ideal`, the lowest"),
    ]


def measure_whole(workers: Workers, runs: int) -> list[Result]:
    return measure(workers, runs, cells(), WHOLE_WINDOW)

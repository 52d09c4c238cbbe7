"""Long kernels: how exact the shares are in windows of a minute, and how long the card idles at the start."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import cores_owed
from cores_scenario import MS, SECOND, Outcome, Scenario, Tenant
from cores_workers import Workers
from results import Result

DURATIONS = (150 * MS, 500 * MS, 2 * SECOND)
SHARES = ((50, 50), (10, 90), (90, 10))  #: of the tenant with the long kernels, and of the one with kernels of 1 ms
SHORT = MS
WINDOW = 60 * SECOND
LENGTH = 66 * SECOND
WHOLE_LENGTH = 180 * SECOND

CROWD, CROWD_SHARE = 8, 12
CROWD_KERNEL = 150 * MS
CROWD_LENGTH = 10 * SECOND
STEP = 5 * MS
STAGGER = 200 * MS  #: tenants begin within so long of each other


@dataclasses.dataclass(frozen=True)
class Cell:
    duration: int
    shares: tuple[int, int]

    def scenario(self, run: int, limiter: str = "libvcuda", length: int = LENGTH) -> Scenario:
        begins = [random.Random(run).randrange(STAGGER), 0]
        durations = (self.duration, SHORT)
        tenants = [
            Tenant(share, [{"kernel": f"fixed:{duration}", "wait": 0, "begin": begin}])
            for share, duration, begin in zip(self.shares, durations, begins)
        ]
        return Scenario(tenants, (SECOND, SECOND + length), limiter, every=SECOND, seed=run + 1)


def cells() -> list[Cell]:
    return [Cell(duration, shares) for duration in DURATIONS for shares in SHARES]


def corners() -> list[Cell]:
    return [Cell(150 * MS, (50, 50)), Cell(500 * MS, (50, 50)), Cell(2 * SECOND, (50, 50)), Cell(2 * SECOND, (10, 90))]


def worst_percent(cell: Cell, outcome: Outcome) -> float:
    """Over all windows and both tenants: the error beyond one kernel, in percent of the share."""
    looks = WINDOW // SECOND
    worst = 0.0
    for first in range(len(outcome.at) - looks):
        for tenant, cores in enumerate(cell.shares):
            length = outcome.at[first + looks] - outcome.at[first]
            error = abs(outcome.share(tenant, first, first + looks) * 100 / cores - 1)
            worst = max(worst, (error - cell.duration * 100 / (cores * length)) * 100)
    return worst


def measure(
    workers: Workers, runs: int, asked: Sequence[Cell] = tuple(corners()), length: int = LENGTH
) -> list[Result]:
    found = workers.by_run(runs, asked, lambda cell, run: cell.scenario(run, length=length))
    worst = [max(map(worst_percent, asked, outcomes)) for outcomes in found]
    what = (
        "kernels of 150 ms to 2 s beside 1 ms, windows of 60 s from every second: |error| beyond a kernel, of the share"
    )
    return [Result.of("cores.long.worst_percent", "percent", 2, worst, what), *_start(workers, runs)]


def crowd(run: int, limiter: str = "libvcuda") -> Scenario:
    source = random.Random(run)
    tenants = [
        Tenant(CROWD_SHARE, [{"kernel": f"fixed:{CROWD_KERNEL}", "wait": 0, "begin": source.randrange(STAGGER)}])
        for _ in range(CROWD)
    ]
    return Scenario(tenants, (0, CROWD_LENGTH), limiter, every=STEP, seed=run + 1)


def start_idle_ms(scenario: Scenario, outcome: Outcome) -> float:
    begun = [int(tenant.loads[0].get("begin", 0)) for tenant in scenario.tenants]
    return cores_owed.idle_ns(outcome, [tenant.cores for tenant in scenario.tenants], begun) / MS


def _start(workers: Workers, runs: int) -> list[Result]:
    scenarios = [crowd(run) for run in range(runs)]
    idle = [start_idle_ms(*pair) for pair in zip(scenarios, workers.run_all(scenarios))]
    what = (
        "eight tenants of 12 with kernels of 150 ms, the first 10 s: time with nothing on the card while one was owed"
    )
    return [Result.of("cores.start.idle_ms", "ms", 20, idle, what)]


def measure_whole(workers: Workers, runs: int) -> list[Result]:
    return measure(workers, runs, cells(), WHOLE_LENGTH)

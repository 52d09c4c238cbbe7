"""Requests that come on their own (an open loop): how long they take beside neighbours who always want the card.

A service has half of its share's work. Its p99, less its p99 under the same limiter without neighbours and the longest
kernel of the neighbours, is what the limiter adds. The latency of a request counts from its intended time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant
from cores_traces import percentile
from cores_workers import Workers
from results import Result

SHARES = (10, 20, 40, 50)
WORK = ((500 * US, 1), (2 * MS, 1), (5 * MS, 1), (100 * US, 20))  #: of a request: a kernel's duration, kernels
ARRIVALS = ("poisson", "fixed")
#: The duration of the neighbours' kernels, and how many neighbours there are.
NEIGHBOURS = ((20 * US, 1), (MS, 1), (10 * MS, 1), (MS, 3), (MS, 4))
REQUESTS = 4000  #: of a cell, the seeds together
WARM_UP = 500 * MS
WALL_WINDOW = (SECOND, 5 * SECOND)
PROBE = 5 * MS


@dataclasses.dataclass(frozen=True)
class Cell:
    share: int
    work: tuple[int, int]
    arrivals: str
    neighbours: tuple[int, int]

    @property
    def interval(self) -> int:
        """Between two requests: they need half of the share."""
        duration, kernels = self.work
        return duration * kernels * 200 // self.share

    @property
    def longest(self) -> int:
        """The longest kernel of a neighbour."""
        return self.neighbours[0]

    @property
    def name(self) -> str:
        (duration, kernels), (theirs, count) = self.work, self.neighbours
        work = f"{kernels} x {duration // US} us"
        return f"share {self.share}, {self.arrivals} {work} beside {count} of {theirs // US} us"

    def service(self) -> Tenant:
        duration, kernels = self.work
        arrivals = f"{self.arrivals}:{self.interval}"
        return Tenant(self.share, [{"kernel": f"fixed:{duration}", "launches": kernels, "arrivals": arrivals}])

    def scenario(self, run: int, limiter: str = "libvcuda", is_alone: bool = False, requests: int = 800) -> Scenario:
        duration, count = self.neighbours
        flood: Load = {"kernel": f"fixed:{duration}", "wait": 0}
        neighbours = [] if is_alone else [Tenant((100 - self.share) // count, [flood])] * count
        begin = WARM_UP + 5 * self.interval
        return Scenario([self.service(), *neighbours], (begin, begin + requests * self.interval), limiter, seed=run + 1)


def cells() -> list[Cell]:
    """All cells, the longest first, so that no worker runs a long one alone at the end."""
    found = [
        Cell(share, work, arrivals, neighbours)
        for share in SHARES
        for work in WORK
        for arrivals in ARRIVALS
        for neighbours in NEIGHBOURS
    ]
    return sorted(found, key=lambda cell: -cell.interval / min(cell.longest, MS))


def corners() -> list[Cell]:
    """Each share, request, kind of arrival and neighbour at least once, and the ends of the ranges together."""
    half, two, five, many = WORK
    chosen = [
        (10, five, "poisson", (10 * MS, 1)),
        (10, half, "poisson", (MS, 1)),
        (10, many, "fixed", (MS, 3)),
        (20, two, "poisson", (MS, 4)),
        (20, two, "poisson", (MS, 1)),
        (40, half, "fixed", (MS, 3)),
        (40, two, "poisson", (10 * MS, 1)),
        (50, half, "poisson", (20 * US, 1)),
        (50, two, "poisson", (MS, 1)),
        (50, five, "fixed", (10 * MS, 1)),
        (50, many, "poisson", (MS, 4)),
    ]
    return [Cell(*one) for one in chosen]


def p99(outcomes: Sequence[Outcome]) -> float:
    """In ms, of the requests of all outcomes together."""
    return percentile([latency for outcome in outcomes for latency in outcome.loads[0][0]["latency_ns"]], 99) / MS


@dataclasses.dataclass(frozen=True)
class Measured:
    """p99 in ms: without neighbours, beside them, and beside them without a limiter."""

    cell: Cell
    alone: float
    beside: float
    free: float

    @property
    def excess_ms(self) -> float:
        return self.beside - self.alone - self.cell.longest / MS

    @property
    def ratio_none(self) -> float:
        return self.beside / self.free


def measure_cells(workers: Workers, runs: int, asked: Sequence[Cell], requests: int = REQUESTS) -> list[Measured]:
    """Each cell, with so many requests of all runs together."""
    each = -(-requests // runs)
    modes = (("libvcuda", True), ("libvcuda", False), ("none", False))
    scenarios = [cell.scenario(run, *mode, each) for cell in asked for mode in modes for run in range(runs)]
    outcomes = workers.run_all(scenarios)
    found = [p99(outcomes[first : first + runs]) for first in range(0, len(outcomes), runs)]
    return [Measured(cell, *found[3 * number : 3 * number + 3]) for number, cell in enumerate(asked)]


def measure(
    workers: Workers, runs: int, asked: Sequence[Cell] = tuple(corners()), requests: int = REQUESTS
) -> list[Result]:
    measured = measure_cells(workers, runs, asked, requests)
    worst = max(measured, key=lambda one: one.excess_ms)
    slowest = max((one for one in measured if one.cell.longest <= MS), key=lambda one: one.ratio_none)
    what = f"{len(asked)} cells of {requests} requests, the seeds together: "
    excess = what + "p99 less (p99 without neighbours + their longest kernel), the worst cell: "
    ratio = what + "p99 / p99 without a limiter, beside kernels up to 1 ms, the worst cell: "
    return [
        Result.of("cores.latency.excess_ms", "ms", 2, [worst.excess_ms], excess + worst.cell.name),
        Result.of("cores.latency.ratio_none", "ratio", 1, [slowest.ratio_none], ratio + slowest.cell.name),
    ]


def measure_wall(workers: Workers, runs: int) -> list[Result]:
    """Measure one cell on the wall clock, and beside it how late a bare futex wakes."""
    cell = Cell(50, WORK[1], "poisson", (MS, 1))
    excess, futex = [], []
    for run in range(runs):
        alone, beside = (_on_the_wall(cell.scenario(run, is_alone=is_alone)) for is_alone in (True, False))
        outcomes = [workers.run(alone), workers.run(beside)]
        excess.append(p99(outcomes[1:]) - p99(outcomes[:1]) - cell.longest / MS)
        futex.append(percentile([at % PROBE for at in outcomes[1].loads[0][1]["woken"]], 99) / MS)
    what = f"on the wall clock, {cell.name}: p99 less (p99 without neighbours + their longest kernel)"
    return [
        Result.of("cores.latency.wall_excess_ms", "ms", None, excess, what),
        Result.of(
            "cores.latency.wall_futex_ms", "ms", None, futex, "in the same runs, p99 of how late a bare futex wakes"
        ),
    ]


def _on_the_wall(scenario: Scenario) -> Scenario:
    service, *neighbours = scenario.tenants
    probed = dataclasses.replace(service, loads=[*service.loads, {"probe": PROBE}])
    return dataclasses.replace(scenario, tenants=[probed, *neighbours], window=WALL_WINDOW, clock="wall")


def measure_whole(workers: Workers, runs: int) -> list[Result]:
    return measure(workers, runs, cells(), runs * REQUESTS)

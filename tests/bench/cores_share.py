"""How exactly one container gets its share: targets x kernel durations x processes, on the virtual and the wall clock.

A run measures every cell once. What the processes do differs from run to run, so that the figure does not depend on
one kind of program. A window is long enough for KERNELS kernels of the share. The simulator's ledger has the exact use.
Several containers on one card are in cores_tenants.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean

from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant, error_percent
from cores_workers import Workers
from results import BenchError, Result

TARGETS = (5, 10, 25, 50, 75, 90)
DURATIONS = (10 * US, 100 * US, MS, 10 * MS, 100 * MS)
PROCESSES = (1, 4, 16)
KERNELS = 200
SHORTEST = SECOND
WARM_UP = 500 * MS

#: What the processes of a run do. Each would keep a card of its own busy nearly all the time.
HABITS: tuple[Load, ...] = (
    {"wait": 0},
    {"launches": 50},
    {"wait": 0, "streams": 2},
    {"launches": 10, "threads": 2},
    {"launches": 100, "streams": 2, "grid": 20},
)


@dataclasses.dataclass(frozen=True)
class Cell:
    target: int
    duration: int
    processes: int

    def scenario(self, run: int, clock: str = "virtual", limiter: str = "libvcuda", kernels: int = KERNELS) -> Scenario:
        length = max(-(-kernels * self.duration * 100 // self.target), SHORTEST)
        begin = WARM_UP + 5 * self.duration * 100 // self.target
        loads: list[Load] = [{"kernel": f"fixed:{self.duration}", **HABITS[run % len(HABITS)]}] * self.processes
        return Scenario([Tenant(self.target, loads)], (begin, begin + length), limiter, clock, seed=run + 1)


def cells(
    targets: Sequence[int] = TARGETS, durations: Sequence[int] = DURATIONS, processes: Sequence[int] = PROCESSES
) -> list[Cell]:
    """All cells, the longest first, so that no worker runs a long one alone at the end."""
    found = [Cell(target, duration, count) for target in targets for duration in durations for count in processes]
    return sorted(found, key=lambda cell: -cell.duration * cell.processes / cell.target)


@dataclasses.dataclass(frozen=True)
class Errors:
    """The errors of one run: of each cell in percent of its target, and the largest excess in percent of the window."""

    percent: list[float]
    over: float
    delivered: float  #: the smallest part of its target that a cell got


def errors(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> Errors:
    pairs = [(outcome.shares[0], cell.target) for cell, outcome in zip(cells, outcomes)]
    return Errors(
        [error_percent(share, target) for share, target in pairs],
        max(share * 100 - target for share, target in pairs),
        min(share * 100 / target for share, target in pairs),
    )


def measure(workers: Workers, runs: int, chosen: Sequence[Cell] | None = None, kernels: int = KERNELS) -> list[Result]:
    """Measure all cells on the virtual clock."""
    asked = list(chosen or cells())
    found = workers.by_run(runs, asked, lambda cell, run: cell.scenario(run, kernels=kernels))
    of_runs = [errors(asked, outcomes) for outcomes in found]
    if any(outcome.stolen for outcomes in found for outcome in outcomes):
        raise BenchError("the virtual clock passed over a running thread that slept elsewhere or was killed")
    what = f"{len(asked)} cells: targets x durations x processes, windows of at least {kernels} kernels; "
    results = [
        Result.of(
            "cores.share.mae_percent", "percent", 2, [fmean(one.percent) for one in of_runs], what + "mean error"
        ),
        Result.of(
            "cores.share.worst_percent", "percent", 5, [max(one.percent) for one in of_runs], what + "worst error"
        ),
        Result.of("cores.share.over_percent", "percent", 2, [one.over for one in of_runs], what + "most over a share"),
        Result.at_least("cores.share.delivered", 0.95, [one.delivered for one in of_runs], what + "least of a target"),
    ]
    for duration in sorted({cell.duration for cell in asked}):
        of_duration = [
            fmean(error for cell, error in zip(asked, one.percent) if cell.duration == duration) for one in of_runs
        ]
        name = f"cores.share.mae_percent.{duration // US}us"
        results.append(Result.of(name, "percent", None, of_duration, "mean error of the cells with this duration"))
    return results


def measure_wall(workers: Workers, runs: int) -> list[Result]:
    """Measure kernels of at least 1 ms on the wall clock, one scenario at a time: each needs all CPUs."""
    asked = cells((10, 50, 90), (MS, 10 * MS), (1, 4))
    figures = []
    for run in range(runs):
        outcomes = [workers.run(cell.scenario(run, "wall", kernels=50)) for cell in asked]
        figures.append(fmean(errors(asked, outcomes).percent))
    what = f"{len(asked)} cells on the wall clock, kernels of 1 and 10 ms: mean error"
    return [Result.of("cores.share.wall_mae_percent", "percent", 5, figures, what)]

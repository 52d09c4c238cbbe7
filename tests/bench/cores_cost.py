"""What the core share costs in real time: a launch that is not held up, and processes that wait."""

from __future__ import annotations

import tempfile
from pathlib import Path

import vcuda
from cores_scenario import MS, SECOND, Load, Scenario, Tenant
from cores_workers import Workers
from results import Result

WAITING = 16
WINDOW = (SECOND, 4 * SECOND)
KERNEL: Load = {"kernel": "fixed:1000000", "wait": 0}


def measure(workers: Workers, runs: int) -> list[Result]:
    return [*launches(runs), *waiting(workers, runs)]


def launches(runs: int) -> list[Result]:
    """The null driver's kernels are done at once, so that nothing is ever held up."""
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, vcuda.Place(Path(name), cores=90) as place:
        added = [place.added()["launch"] for _ in range(max(runs, vcuda.ROUNDS))]
    what = "cuLaunchKernel under a share of 90, nothing held up: (libvcuda - null driver) / clock_gettime"
    return [Result.of("cores.launch.added", "ratio", 3, added, what)]


def waiting(workers: Workers, runs: int) -> list[Result]:
    """A share of 5 among processes that always want more: they wait nearly all the time."""
    tenant = Tenant(5, [KERNEL] * WAITING)
    outcomes = [workers.run(Scenario([tenant], WINDOW, clock="wall", seed=run + 1)) for run in range(runs)]
    length_ms = (WINDOW[1] - WINDOW[0]) / MS
    cpu = [max(load["cpu_ms"] for load in outcome.loads[0]) / length_ms * 100 for outcome in outcomes]
    what = f"{WAITING} processes of a share of 5: CPU of one that waits, in percent of a core, the most"
    return [Result.of("cores.waiting.cpu_percent", "percent", 1, cpu, what)]

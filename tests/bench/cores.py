"""Group `cores`: whether the core share is exact, fair and cheap. On the simulated driver, at least five runs of each.

By its virtual clock, except where a figure says otherwise: what is measured then is the limiter, not this machine, and
a run differs from the next by what the programs do. The last figures are real time: what a launch and a wait cost.
`VGPU_BENCH_RUNS` sets the number of runs, `VGPU_BENCH_ONLY` names parts of it (see PARTS).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import cores_change
import cores_cost
import cores_share
import cores_tenants
from cores_workers import Workers
from results import BenchError, Result

RUNS = 5

PARTS: dict[str, Callable[[Workers, int], list[Result]]] = {
    "share": cores_share.measure,
    "wall": cores_share.measure_wall,
    "tenants": cores_tenants.measure,
    "neighbours": cores_tenants.measure_neighbours,
    "soft": cores_tenants.measure_soft,
    "change": cores_change.measure,
    "cost": cores_cost.measure,
}


def measure() -> list[Result]:
    """All results of the group."""
    runs = int(os.environ.get("VGPU_BENCH_RUNS", RUNS))
    names = os.environ.get("VGPU_BENCH_ONLY", " ".join(PARTS)).split()
    if runs < 1 or not set(names) <= set(PARTS):
        raise BenchError(f"VGPU_BENCH_RUNS is at least 1, VGPU_BENCH_ONLY some of {' '.join(PARTS)}")
    with Workers() as workers:
        return [result for name in names for result in PARTS[name](workers, runs)]

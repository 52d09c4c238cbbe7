"""Group `cores`: whether the core share is exact, fair and cheap. It needs the simulated driver.

Most figures are on the simulator's virtual clock: they measure the limiter and not this machine, and runs differ only
by what the programs do. The last figures, the cost of a launch and of a wait, are real time; `wall` in a figure's id
also means real time. The parts are in the cores_*.py modules; this module only selects them.
`VGPU_BENCH_RUNS` sets the number of runs of each figure (5 unless set); `VGPU_BENCH_ONLY` selects parts (see PARTS).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import cores_cards
import cores_change
import cores_cost
import cores_forged
import cores_gaps
import cores_latency
import cores_loans
import cores_long
import cores_many
import cores_mix
import cores_named
import cores_share
import cores_tenants
import cores_throttled
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
    "gaps": cores_gaps.measure,
    "latency": cores_latency.measure,
    "wall_latency": cores_latency.measure_wall,
    "long": cores_long.measure,
    "many": cores_many.measure,
    "cards": cores_cards.measure,
    "throttled": cores_throttled.measure,
    "loans": cores_loans.measure,
    "forged": cores_forged.measure,
    "named": cores_named.measure,
    "mix": cores_mix.measure,
}


def measure() -> list[Result]:
    """All results of the group."""
    runs = int(os.environ.get("VGPU_BENCH_RUNS", RUNS))
    names = os.environ.get("VGPU_BENCH_ONLY", " ".join(PARTS)).split()
    if runs < 1 or not set(names) <= set(PARTS):
        raise BenchError(f"VGPU_BENCH_RUNS must be at least 1, VGPU_BENCH_ONLY some of {' '.join(PARTS)}")
    with Workers() as workers:
        return [result for name in names for result in PARTS[name](workers, runs)]

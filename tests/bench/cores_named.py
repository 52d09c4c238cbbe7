"""Cases with names: what real programs do that grids of floods and rounds do not show, each with a bar of its own.

A service beside graphs; every way to wait for work; copies; requests on a card without neighbours; threads that wake
up late. Random mixes of the same programs are in cores_mix.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import cores_gaps
import pictures
from cores_latency import p99
from cores_mix import WAYS
from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant, error_percent
from cores_workers import Workers
from results import AT_LEAST, Result

WINDOW = (SECOND, 9 * SECOND)
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}
SERVICE: Load = {"kernel": f"fixed:{2 * MS}", "arrivals": f"poisson:{20 * MS}"}
GRAPH: Load = {"kernel": f"fixed:{100 * US}", "graph": 1000}
OWNERS: tuple[Load, ...] = (
    GRAPH,
    {**GRAPH, "graph": 300},
    {**GRAPH, "kernel": f"fixed:{10 * US}"},
    {"kernel": f"fixed:{10 * MS}"},
)
ROUNDS = cores_gaps.Cell(2 * MS, 500 * US, 2)
COPIED: Load = {"kernel": f"fixed:{2 * MS}", "copy": 16 << 20}
COPIES: tuple[Load, ...] = (COPIED, {**COPIED, "wait": 0}, {**COPIED, "wait": 0, "apart": 1})
#: Services on a card without neighbours.
ALONE = (
    Tenant(10, [{"kernel": f"fixed:{MS}", "arrivals": f"poisson:{20 * MS}"}]),
    Tenant(30, [{"kernel": f"fixed:{100 * US}", "launches": 40, "arrivals": f"poisson:{27 * MS}"}]),
)
LATE_US = 5000
LATE = (30, 70)


def halves(loads: tuple[Load, Load], run: int, limiter: str = "libvcuda") -> Scenario:
    return Scenario([Tenant(50, [load]) for load in loads], WINDOW, limiter, seed=run + 1)


def late_ms(got: Sequence[Outcome], others: Sequence[Outcome]) -> float:
    """How much later the first tenant's requests are than those of the other outcomes: p99, the worst."""
    return max(p99([one]) - p99([other]) for one, other in zip(got, others))


def measure_graphs(workers: Workers, runs: int) -> list[Result]:
    got, free, ideal = (
        workers.by_run(runs, owners, lambda owner, run, limiter=limiter: halves((SERVICE, owner), run, limiter))
        for limiter, owners in (("libvcuda", OWNERS), ("none", OWNERS), ("ideal", OWNERS[:1]))
    )
    floods = workers.by_run(runs, [GRAPH], lambda graph, run: halves((FLOOD, graph), run))
    owned = [
        max(error_percent(share, 50) for share in (*(one.share(1) for one in got[run]), *floods[run][0].shares))
        for run in range(runs)
    ]
    curves = {
        limiter: [latency for outcomes in found for latency in outcomes[0].loads[0][0]["latency_ns"]]
        for limiter, found in (("libvcuda", got), ("none", free), ("ideal", ideal))
    }
    pictures.latencies("graphs.svg", "A service beside graphs of 1000 kernels of 100 us", curves)
    what = "a service beside graphs of 1000 and 300 x 100 us, of 1000 x 10 us, and kernels of 10 ms, worst: "
    return [
        Result.of(
            "cores.graphs.late_ms", "ms", 0.5, list(map(late_ms, got, free)), what + "its p99 less that of `none`"
        ),
        Result.of(
            "cores.graphs.owner_percent", "percent", 2, owned,
            what + "error of the neighbour's share of 50; and of both shares, a flood beside graphs of 1000 x 100 us",
        ),
    ]  # fmt: skip


def waiting(way: str, run: int) -> Scenario:
    scenario = ROUNDS.scenario(run)
    tenants = [dataclasses.replace(one, loads=[{**one.loads[0], "wait": way}]) for one in scenario.tenants]
    return dataclasses.replace(scenario, tenants=tenants)


def measure_ways(workers: Workers, runs: int) -> list[Result]:
    used = [[sum(one.shares) for one in outcomes] for outcomes in workers.by_run(runs, WAYS, waiting)]
    what = f"two tenants, rounds of 2 ms and gaps of 0.5 ms: card time with each of {len(WAYS)} ways to wait / the best"
    return [
        Result.at_least("cores.ways.ratio", 0.97, [min(each) / max(each) for each in used], what + "'s, the lowest")
    ]


def measure_copies(workers: Workers, runs: int) -> list[Result]:
    found = workers.by_run(runs, COPIES, lambda load, run: halves((load, FLOOD), run))
    least = [min(share * 100 for one in outcomes for share in one.shares) for outcomes in found]
    what = "a kernel of 2 ms and a copy of 16 MiB, with and without a wait and a stream of its own, beside a flood: "
    return [Result.of("cores.copies.least_percent", f"percent{AT_LEAST}", 47, least, what + "the least share of 50")]


def measure_alone(workers: Workers, runs: int) -> list[Result]:
    got, ideal = (
        workers.by_run(runs, ALONE, lambda one, run, limiter=limiter: Scenario([one], WINDOW, limiter, seed=run + 1))
        for limiter in ("libvcuda", "ideal")
    )
    what = "services with half of their shares of 10 and 30, alone on the card: p99 less that under `ideal`, the worse"
    return [Result.of("cores.alone.late_ms", "ms", 2, list(map(late_ms, got, ideal)), what)]


def late(limiter: str, run: int) -> Scenario:
    tenants = [Tenant(share, [FLOOD]) for share in LATE]
    return Scenario(tenants, WINDOW, limiter, timing={"late_us": LATE_US}, seed=run + 1)


def measure_late(workers: Workers, runs: int) -> list[Result]:
    found = workers.by_run(runs, ("libvcuda", "none"), late)
    points = [max(abs(got * 100 - share) for got, share in zip(one.shares, LATE)) for one, _ in found]
    used = [sum(one.shares) / sum(free.shares) for one, free in found]
    what = f"floods of 30 and 70 whose threads wake up {LATE_US // 1000} ms late in the mean: "
    return [
        Result.of("cores.late.points", "points", 3, points, what + "the worst difference from a share"),
        Result.at_least("cores.late.use", 0.9, used, what + "card time / without a limiter"),
    ]


def measure(workers: Workers, runs: int) -> list[Result]:
    parts = (measure_graphs, measure_ways, measure_copies, measure_alone, measure_late)
    return [result for part in parts for result in part(workers, runs)]

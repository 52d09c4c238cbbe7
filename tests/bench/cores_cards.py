"""Tenants on two cards beside tenants on one of them: the error of each share, with kernels, graphs, copies and rounds.

A tenant's card time counts on all of its cards; the figure is the mean of them. The second card has no other tenant.
"""

from __future__ import annotations

from cores_scenario import MS, SECOND, Load, Outcome, Scenario, Tenant, error_percent
from cores_workers import Workers
from results import Result

WINDOW = (SECOND, 6 * SECOND)
FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}
BOTH: Load = {"streams": 2, "cards": 2}  #: a stream for each card
CELLS: dict[str, Load] = {
    "kernels": {**FLOOD, **BOTH},
    "graphs": {"kernel": "fixed:200000", "graph": 10, "wait": 0, **BOTH},
    "copies": {"kernel": f"fixed:{MS}", "copy": 100_000, **BOTH},
    "rounds": {"kernel": "fixed:200000", "graph": 10, "launches": 5, **BOTH},  #: one thread waits for both cards
}
SHARES = ((50, 50), (30, 70), (70, 30))  #: on two cards, on the first of them


def scenario(load: Load, shares: tuple[int, int], run: int) -> Scenario:
    tenants = [Tenant(shares[0], [load]), Tenant(shares[1], [FLOOD], cards=1)]
    return Scenario(tenants, WINDOW, profile="a100x2", seed=run + 1)


def worst(shares: tuple[int, int], outcome: Outcome) -> float:
    both, first = outcome.shares
    return max(error_percent(both / 2, shares[0]), error_percent(first, shares[1]))


def measure(workers: Workers, runs: int) -> list[Result]:
    results = []
    for name, load in CELLS.items():
        found = workers.by_run(runs, SHARES, lambda shares, run, load=load: scenario(load, shares, run))
        errors = [max(map(worst, SHARES, outcomes)) for outcomes in found]
        what = f"a tenant on two cards ({name}) beside one on the first: worst error of a share"
        results.append(Result.of(f"cores.cards.{name}_percent", "percent", 5, errors, what))
    return results

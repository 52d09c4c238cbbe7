"""Sixty-four tenants of one percent on a card."""

from __future__ import annotations

import cores_owed
from cores_scenario import MS, SECOND, US, Scenario, Tenant
from cores_workers import Workers
from results import Result

COUNT = 64
KERNEL = 100 * US
STEP = 10 * MS
WINDOW = (0, 5 * SECOND)
SETTLED = SECOND // STEP  #: the reading from which delivered card time counts


def scenario(run: int, limiter: str = "libvcuda") -> Scenario:
    return Scenario(
        [Tenant(1, [{"kernel": f"fixed:{KERNEL}", "wait": 0}])] * COUNT, WINDOW, limiter, every=STEP, seed=run + 1
    )


def measure(workers: Workers, runs: int) -> list[Result]:
    outcomes = workers.run_all(scenario(run) for run in range(runs))
    delivered = [sum(outcome.share(tenant, SETTLED) for tenant in range(COUNT)) * 100 / COUNT for outcome in outcomes]
    waits = [
        max(cores_owed.longest_wait_ns(outcome, tenant, 1, 0) for tenant in range(COUNT)) / MS for outcome in outcomes
    ]
    what = f"{COUNT} tenants of share 1 that flood the card with kernels of 100 us: "
    return [
        Result.at_least("cores.many.delivered", 0.97, delivered, what + "card time used, of 64 percent"),
        Result.of("cores.many.wait_ms", "ms", 200, waits, what + "the longest time without any, while it was owed"),
    ]

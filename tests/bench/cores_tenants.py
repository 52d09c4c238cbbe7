"""Several containers on one card: the error of each share, fairness, the effect of neighbours, and soft shares.

One container alone is in cores_share.py; changes of a share in cores_change.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from cores_scenario import MS, SECOND, Load, Outcome, Scenario, Tenant, error_percent, jain
from cores_workers import Workers
from results import Result

WINDOW = (SECOND, 6 * SECOND)
LONG_WINDOW = (SECOND, 21 * SECOND)  #: 200 kernels of 5 ms under a share of 5
STEP = 10 * MS
BACK = 100 * MS  #: the owner has its share back when it gets it over this time

#: Shares that add up to 100.
NODES = ((50, 50), (10, 90), (30, 70), (20, 30, 50), (10, 20, 30, 40), (5, 5, 10, 10, 15, 15, 20, 20))

#: What tenants run; the tenant's number and the run's number select the entry.
LOADS: tuple[list[Load], ...] = (
    [{"kernel": "fixed:1000000", "wait": 0}],
    [{"kernel": "lognormal:20000:1500:10000000", "wait": 0}],
    [{"kernel": "bimodal:20000:5000000:50", "launches": 50}],
    [{"kernel": "fixed:100000", "launches": 100}] * 2,
    [{"kernel": "fixed:200000", "launches": 5, "graph": 10}],
    [{"kernel": "fixed:2000000", "wait": 0, "streams": 2}],
    [{"kernel": "lognormal:30000:1000:5000000", "launches": 200}] * 4,
)
FLOOD: Load = {"kernel": "fixed:1000000", "wait": 0}


def tenants(shares: Sequence[int], run: int) -> list[Tenant]:
    return [Tenant(share, LOADS[(number + run) % len(LOADS)]) for number, share in enumerate(shares)]


def node(shares: Sequence[int], run: int, limiter: str = "libvcuda") -> Scenario:
    return Scenario(tenants(shares, run), LONG_WINDOW, limiter, seed=run + 1, lender=limiter == "libvcuda")


def measure(workers: Workers, runs: int) -> list[Result]:
    asked = [(shares, run) for run in range(runs) for shares in NODES]
    limited = workers.run_all([node(shares, run) for shares, run in asked])
    free = workers.run_all([node(shares, run, "none") for shares, run in asked])
    worst, fairness, throughput, ratio = [], [], [], []
    for run in range(runs):
        of_run = [number for number, (_, of) in enumerate(asked) if of == run]
        worst.append(max(_worst(asked[number][0], limited[number]) for number in of_run))
        fairness.append(
            min(jain([got / of for got, of in zip(limited[number].shares, asked[number][0])]) for number in of_run)
        )
        throughput.append(min(sum(limited[number].shares) / sum(free[number].shares) for number in of_run))
        first, second = next(limited[number].shares for number in of_run if asked[number][0] == (10, 90))
        ratio.append(second / first)
    what = f"{len(NODES)} nodes of two to eight tenants whose shares add up to 100"
    return [
        Result.of("cores.tenants.worst_percent", "percent", 3, worst, f"{what}: worst error of a tenant's share"),
        Result.at_least("cores.tenants.jain", 0.99, fairness, f"{what}: Jain's index of delivered / share, the lowest"),
        Result.at_least(
            "cores.tenants.throughput", 0.95, throughput, f"{what}: card time used / without limits, lowest"
        ),
        Result.of(
            "cores.tenants.10_90", "ratio", None, ratio, "shares 10 and 90: time of the second / the first (ideal: 9)"
        ),
    ]


def _worst(shares: Sequence[int], outcome: Outcome) -> float:
    return max(error_percent(got, share) for got, share in zip(outcome.shares, shares))


def measure_neighbours(workers: Workers, runs: int) -> list[Result]:
    """Measure a tenant of 50 that works round by round, alone and beside seven tenants of 7 that flood the card."""
    scenarios = []
    for run in range(runs):
        victim = Tenant(50, [{"kernel": "lognormal:50000:1000:2000000", "launches": 20}])
        for crowd in ([], [Tenant(7, [FLOOD])] * 7):
            scenarios.append(Scenario([victim, *crowd], WINDOW, seed=run + 1, lender=True))
    outcomes = workers.run_all(scenarios)
    figures = [(alone.share(0) / beside.share(0) - 1) * 100 for alone, beside in zip(outcomes[::2], outcomes[1::2])]
    what = "a tenant of 50 beside seven that flood the card: card time alone / beside them, less 1"
    return [Result.of("cores.noisy_neighbour.slowdown_percent", "percent", 5, figures, what)]


def measure_soft(workers: Workers, runs: int) -> list[Result]:
    """Measure how much of an idle card a soft share uses, and how soon the owner of the rest gets it back."""
    used = workers.run_all(
        Scenario([Tenant(30, LOADS[run % len(LOADS)], limit)], WINDOW, seed=run + 1, lender=True)
        for run in range(runs)
        for limit in (60, 80)
    )
    utilization = [
        fmean(outcome.share(0) * 100 / limit for outcome, limit in zip(used[2 * run :], (60, 80)))
        for run in range(runs)
    ]
    woken = 3 * SECOND
    returns = workers.run_all(
        Scenario(
            [Tenant(50, [{**FLOOD, "begin": woken + run * 3 * MS}], 100), Tenant(50, LOADS[run % 2], 100)],
            (woken + run * 3 * MS, woken + SECOND),
            every=STEP,
            seed=run + 1,
            lender=True,
        )
        for run in range(runs)
    )
    back = [_back_ms(outcome, 50) for outcome in returns]
    return [
        Result.at_least(
            "cores.soft.utilization", 0.97, utilization, "part of core-limit 60 and 80 used on an idle card, share 30"
        ),
        Result.of("cores.soft.return_ms", "ms", 200, back, "until the owner of 50 has 0.95 of it over the next 100 ms"),
    ]


def _back_ms(outcome: Outcome, share: int) -> float:
    looks = int(BACK / STEP)
    for first in range(len(outcome.at) - looks):
        if outcome.share(0, first, first + looks) * 100 >= 0.95 * share:
            return (outcome.at[first] - outcome.at[0]) / MS
    return (outcome.at[-1] - outcome.at[0]) / MS

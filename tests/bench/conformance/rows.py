"""What the suite asks of a limiter: each question is a row of its table, with its scenarios and its figure.

The scenarios are those of the group `cores`, fewer and shorter. They name no limiter, and their traces depend on the
seed only. A figure is computed from the outcomes under the limiter and, where it is relative, from those under the
reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import cores_gaps
import cores_latency
import cores_loans
import cores_long
import cores_many
import cores_owed
from cores_scenario import MS, SECOND, US, Load, Outcome, Scenario, Tenant, error_percent

Outcomes = Sequence[Outcome]


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    unit: str
    what: str
    scenarios: Callable[[int], list[Scenario]]  #: by the run
    figure: Callable[[Outcomes, Outcomes], float]  #: outcomes under the limiter, and under the reference
    reference: str = ""  #: a limiter, if the figure is relative to one


FLOOD: Load = {"kernel": f"fixed:{MS}", "wait": 0}
SHARES = ((30, 70), (10, 90), (20, 30, 50))
GAPS = [
    cores_gaps.Cell(round_, gap, tenants)
    for round_ in cores_gaps.ROUNDS
    for gap in (100 * US, 900 * US, 5 * MS)
    for tenants in (2, cores_gaps.FLOOD)
]
SERVICES = [
    cores_latency.Cell(50, (2 * MS, 1), "poisson", (MS, 1)),
    cores_latency.Cell(20, (2 * MS, 1), "poisson", (MS, 1)),
    cores_latency.Cell(40, (2 * MS, 1), "poisson", (10 * MS, 1)),
    cores_latency.Cell(40, (500 * US, 1), "fixed", (MS, 3)),
]
REQUESTS = 800
LONG = cores_long.Cell(500 * MS, (50, 50))


def floods(run: int) -> list[Scenario]:
    return [Scenario([Tenant(share, [FLOOD]) for share in row], (SECOND, 11 * SECOND), seed=run + 1) for row in SHARES]


def worst_error(got: Outcomes, _: Outcomes) -> float:
    pairs = [(outcome.shares[number], share) for outcome, row in zip(got, SHARES) for number, share in enumerate(row)]
    return max(error_percent(share, target) for share, target in pairs)


def services(run: int) -> list[Scenario]:
    """Each cell without neighbours, then beside them."""
    return [cell.scenario(run, is_alone=is_alone, requests=REQUESTS) for cell in SERVICES for is_alone in (True, False)]


def excess_ms(got: Outcomes, _: Outcomes) -> float:
    pairs = zip(SERVICES, got[::2], got[1::2])
    return max(
        cores_latency.p99([beside]) - cores_latency.p99([alone]) - cell.longest / MS for cell, alone, beside in pairs
    )


def p99_ratio(got: Outcomes, free: Outcomes) -> float:
    pairs = [pair for cell, *pair in zip(SERVICES, got[1::2], free[1::2]) if cell.longest <= MS]
    return max(cores_latency.p99([beside]) / cores_latency.p99([of]) for beside, of in pairs)


def loans(run: int) -> list[Scenario]:
    owners = cores_loans.owners()
    return [cores_loans.scenario(*owner, run) for owner in (owners[0], owners[1], owners[-1])]


def many(run: int) -> list[Scenario]:
    return [dataclasses.replace(cores_many.scenario(run), window=(0, 3 * SECOND))]


def delivered(got: Outcomes, _: Outcomes) -> float:
    settled = cores_many.SETTLED
    return sum(got[0].share(tenant, settled) for tenant in range(cores_many.COUNT)) * 100 / cores_many.COUNT


def longest_wait_ms(got: Outcomes, _: Outcomes) -> float:
    return max(cores_owed.longest_wait_ns(got[0], tenant, 1, 0) for tenant in range(cores_many.COUNT)) / MS


def idle_ms(got: Outcomes, _: Outcomes) -> float:
    begun = [cores_long.STAGGER] * cores_long.CROWD  # by then all have work
    return cores_owed.idle_ns(got[0], [cores_long.CROWD_SHARE] * cores_long.CROWD, begun) / MS


def gaps(run: int) -> list[Scenario]:
    return [cell.scenario(run) for cell in GAPS]


ROWS = (
    Row("share.error", "percent", "floods of 1 ms, shares that add up to 100: the worst error", floods, worst_error),
    Row("gaps.efficiency", "ratio", "programs that pause: card time / under ideal, the lowest", gaps,
        lambda got, reference: min(map(cores_gaps.efficiency, got, reference)), "ideal"),
    Row("gaps.jain", "ratio", "programs that pause: Jain's index of got / under ideal, the lowest", gaps,
        lambda got, reference: min(map(cores_gaps.evenness, got, reference)), "ideal"),
    Row("latency.excess", "ms", "services beside floods: p99 beyond p99 alone and one kernel", services, excess_ms),
    Row("latency.ratio", "ratio", "the same: p99 / without a limiter, kernels of 1 ms", services, p99_ratio, "none"),
    Row("long.error", "percent", "500 ms beside 1 ms at 50 and 50, a minute: error beyond one kernel",
        lambda run: [LONG.scenario(run, length=62 * SECOND)], lambda got, _: cores_long.worst_percent(LONG, got[0])),
    Row("start.idle", "ms", "eight of 12 with 150 ms kernels: idle in the first 10 s while one was owed",
        lambda run: [cores_long.crowd(run)], idle_ms),
    Row("many.delivered", "ratio", "64 floods of share 1: card time, of 64 percent", many, delivered),
    Row("many.wait", "ms", "the same: the longest time without any, while owed", many, longest_wait_ms),
    Row("loans.utilization", "ratio", "owners who come and go: card time / without a limiter, the lowest", loans,
        lambda got, free: min(sum(one.shares) / sum(of.shares) for one, of in zip(got, free)), "none"),
)  # fmt: skip

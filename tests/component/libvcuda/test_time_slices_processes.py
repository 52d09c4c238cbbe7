"""Containers of several processes, and programs on several cards, beside other containers, in virtual time: each gets
its share as exactly as one process on one card does, though processes take turns and one thread serves all cards.
"""

from __future__ import annotations

from typing import Any

import pytest

SECOND = 1_000_000_000
WINDOW = (SECOND, 6 * SECOND)
FLOOD = {"kernel": "fixed:1000000", "wait": 0}
ROUNDS = {"kernel": "fixed:100000", "launches": 100}
GRAPHS = {"kernel": "fixed:200000", "graph": 10, "launches": 5}
KERNELS = {"kernel": "fixed:1000000", "launches": 10}
MIXED = {"kernel": "lognormal:30000:1000:5000000", "launches": 200}


@pytest.mark.sample(2)
@pytest.mark.parametrize("programs", [[ROUNDS] * 2, [MIXED] * 4], ids=["two", "four"])
@pytest.mark.parametrize(
    ("share", "others", "least"), [(10, [90], 0.975), (5, [19] * 5, 0.955), (10, [10] * 9, 0.94)], ids=str
)
def test_several_processes_get_what_one_gets(
    bench: Any, programs: list[dict[str, Any]], share: int, others: list[int], least: float
) -> None:
    """What changes of containers cost is in `least`: 100 us of each period for each container. In its first seconds a
    container also spends the quota that it had saved.
    """
    tenants = [(share, programs), *((other, [FLOOD]) for other in others)]
    made = [bench.scenario.Tenant(*tenant) for tenant in tenants]
    outcome = bench.workers.run(bench.scenario.Scenario(made, (SECOND, 11 * SECOND)))
    assert least < outcome.shares[0] * 100 / share < 1.01


@pytest.mark.sample(2)
@pytest.mark.parametrize(("share", "other"), [(50, 50), (30, 70), (70, 30)])
@pytest.mark.parametrize("load", [GRAPHS, KERNELS], ids=["graphs", "kernels"])
def test_rounds_on_two_cards_get_what_kernels_on_one_get(
    bench: Any, load: dict[str, Any], share: int, other: int
) -> None:
    """A thread launches all of a round on the first card, then on the other one, and waits. Both cards work at once."""
    program = {**load, "streams": 2, "cards": 2}
    tenants = [bench.scenario.Tenant(share, [program]), bench.scenario.Tenant(other, [FLOOD], cards=1)]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, WINDOW, profile="a100x2"))
    both, first = outcome.shares
    # Of two halves, one loses what both lose to the changes: which one, the order of their first turns decides.
    assert (0.955 if share == other else 0.97) < both / 2 * 100 / share < 1.01
    assert both / 2 + first > 0.97 * (share + other) / 100
    assert 0.97 < first * 100 / other < 1.01


def test_a_program_that_uses_one_of_its_cards_has_little_under_way(bench: Any) -> None:
    """A request beside it waits for about a kernel, though the program's other card has nothing to do."""
    service = {"kernel": "fixed:500000", "gap": 20_000_000}
    tenants = [bench.scenario.Tenant(50, [GRAPHS]), bench.scenario.Tenant(50, [service], cards=1)]
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, WINDOW, profile="a100x2"))
    (figures,) = outcome.loads[1]
    assert figures["p99_us"] < 500 + 2000 + 2000

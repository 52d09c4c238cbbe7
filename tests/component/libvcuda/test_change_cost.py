"""What a change of contexts costs a card, as libvcuda measures it while programs run, in virtual time: the simulated
card takes a known time for it.
"""

from __future__ import annotations

from typing import Any

import pytest

US, SECOND = 1_000, 1_000_000_000
WINDOW = (SECOND, 4 * SECOND)
FLOOD = {"kernel": "fixed:1000000", "wait": 0}
ROUNDS = {"kernel": "fixed:100000", "launches": 20, "gap": 500_000}
RANDOM = {"kernel": "lognormal:30000:1500:10000000", "launches": 200}


def measured(bench: Any, switch_us: int, *programs: list[dict[str, Any]]) -> list[int]:
    """What each container says at the end, in ns; 0: it says nothing."""
    tenants = [bench.scenario.Tenant(100 // len(programs), loads) for loads in programs]
    timing = {"switch_us": switch_us}
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, WINDOW, timing=timing, every=SECOND))
    changes: list[int] = outcome.changes
    return changes


@pytest.mark.sample(3)
@pytest.mark.parametrize("switch_us", [50, 200, 350])
@pytest.mark.parametrize(
    "programs", [([FLOOD], [FLOOD]), ([ROUNDS], [FLOOD]), ([FLOOD] * 2, [ROUNDS] * 2)], ids=["floods", "rounds", "four"]
)
def test_it_is_found_whatever_the_programs_do(bench: Any, switch_us: int, programs: Any) -> None:
    for said in measured(bench, switch_us, *programs):
        assert 0.8 * switch_us * US < said < 1.2 * switch_us * US


@pytest.mark.parametrize(("idle_us", "least"), [(0, 96), (1000, 94)])
def test_dear_changes_are_rare(bench: Any, idle_us: int, least: float) -> None:
    """With periods of 100 ms, and slices that end when another container has waited, eight floods had 93 and 86."""
    flood = {"kernel": "fixed:1000000", "wait": 0}
    tenants = [bench.scenario.Tenant(share, [flood]) for share in (20, 20, 12, 12, 10, 10, 8, 8)]
    timing = {"switch_us": 500, "idle_us": idle_us}
    outcome = bench.workers.run(bench.scenario.Scenario(tenants, (SECOND, 4 * SECOND), timing=timing))
    assert sum(outcome.shares) * 100 > least


def test_programs_whose_kernels_are_of_all_lengths_say_little(bench: Any) -> None:
    """Kernels that differ by more than a change takes tell nothing. The figure stays near the one it begins with."""
    for said in measured(bench, 350, [RANDOM], [RANDOM]):
        assert said < 150 * US

"""What containers say of the cost of a change: the lower median counts, within bounds, and small moves do not."""

from __future__ import annotations

import pytest

from vgpu.node.daemon.change_costs import FOR_EACH, LEAST_NS, MOST_NS, ChangeCosts

CARD, OTHER = "GPU-1", "GPU-2"


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ([50_000], 50_000),
        ([50_000, 200_000], 50_000),
        ([50_000, 60_000, 1 << 55], 60_000),
        ([0, 1, 50_000, 50_000, 50_000], 50_000),
        ([1], LEAST_NS),
        ([1 << 55, 1 << 55], MOST_NS),
    ],
)
def test_the_lower_median_counts_within_bounds(said: list[int], believed: int) -> None:
    costs = ChangeCosts()
    costs.note({CARD: ns} for ns in said)
    assert costs.by_card == {CARD: FOR_EACH * believed}


def test_a_figure_that_moves_little_changes_nothing() -> None:
    costs = ChangeCosts()
    for ns, expected in ((50_000, 100_000), (58_000, 100_000), (43_000, 100_000), (62_000, 120_000)):
        costs.note([{CARD: ns}])
        assert costs.by_card == {CARD: expected}


def test_each_card_has_its_own_and_keeps_it_while_nobody_measures() -> None:
    costs = ChangeCosts()
    costs.note([{CARD: 50_000}, {OTHER: 200_000}])
    costs.note([])
    costs.note([{}])
    assert costs.by_card == {CARD: 100_000, OTHER: 400_000}

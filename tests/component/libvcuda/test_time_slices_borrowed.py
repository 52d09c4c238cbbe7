"""Soft shares without vgpud, in virtual time: a container takes what nobody else wants, up to its core limit, and gives
way when somebody does.
"""

from __future__ import annotations

from typing import Any

import pytest
from sharing_containers import OWN_BITS, queue_offset

MS, SECOND = 1_000_000, 1_000_000_000
FLOOD = {"kernel": "fixed:1000000", "wait": 0}
SERVICE = {"kernel": "fixed:1000000", "arrivals": "poisson:20000000"}  # 5 percent of the card
WINDOW = (SECOND, 4 * SECOND)


def percents(bench: Any, *tenants: tuple[int, list[dict[str, Any]], int]) -> list[float]:
    """What each (share, programs, core limit) gets."""
    made = [bench.scenario.Tenant(*tenant) for tenant in tenants]
    return [share * 100 for share in bench.workers.run(bench.scenario.Scenario(made, WINDOW)).shares]


def test_it_takes_what_an_owner_leaves(bench: Any) -> None:
    service, borrower = percents(bench, (50, [SERVICE], 50), (50, [FLOOD], 100))
    assert service > 4.5
    assert borrower > 90


@pytest.mark.parametrize("programs", [[FLOOD], [FLOOD] * 4, [{"kernel": "fixed:100000"}]], ids=["one", "four", "waits"])
def test_it_has_at_most_its_core_limit(bench: Any, programs: list[dict[str, Any]]) -> None:
    _, borrower = percents(bench, (50, [SERVICE], 50), (20, programs, 60))
    assert 53 < borrower < 61


def test_alone_on_the_card_it_has_its_core_limit(bench: Any) -> None:
    (borrower,) = percents(bench, (30, [FLOOD], 60))
    assert 57 < borrower < 61


def test_an_owner_who_always_has_work_has_its_share(bench: Any) -> None:
    owner, borrower = percents(bench, (75, [FLOOD], 75), (25, [FLOOD], 100))
    assert owner == pytest.approx(75, abs=1)
    assert borrower == pytest.approx(25, abs=1)


def test_owners_who_come_and_go_have_their_shares(bench: Any) -> None:
    changing = {"kernel": "fixed:1000000", "launches": 4, "on": 20 * MS, "off": 20 * MS}
    owner, borrower = percents(bench, (50, [changing], 50), (50, [FLOOD], 100))
    assert owner > 45
    assert owner + borrower > 95


def test_who_pauses_has_the_card_while_the_other_pauses(bench: Any) -> None:
    """If each gave way in the middle of its rounds, both would pause at once."""
    rounds = {"kernel": "fixed:100000", "launches": 100, "gap": 5 * MS}
    assert sum(percents(bench, (50, [rounds], 100), (50, [{**rounds, "begin": 3 * MS}], 100))) > 90


def test_several_divide_what_is_idle(bench: Any) -> None:
    _, one, other = percents(bench, (50, [SERVICE], 50), (20, [FLOOD], 100), (20, [FLOOD], 100))
    assert one + other > 88
    assert one == pytest.approx(other, abs=8)


@pytest.mark.parametrize("place", ["first", "ahead"])
def test_false_places_raise_nobody_above_the_core_limit(bench: Any, place: str) -> None:
    """The borrower holds a false place in the queue, before all others or behind them."""
    first = queue_offset(bench.workers.card())
    lie = {"lie_from": first + 1 if place == "first" else first + (1 << OWN_BITS) - 2, "lie_each": MS}
    owner, borrower = percents(bench, (50, [SERVICE], 50), (20, [{**FLOOD, **lie}], 60))
    assert owner > 4.5
    assert borrower < 61

"""Core shares end to end: containers by runc that flood one card, the hook's schedules, libvcuda's throttle.

The card's time is virtual. Loans by vgpud, whose time is real, are in test_core_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flooded_card import FloodedCard
from virtual_director import MS, Director

pytestmark = pytest.mark.root

SETTLE = 500 * MS


@pytest.fixture
def director(card: FloodedCard) -> Iterator[Director]:
    made = card.make_virtual()
    yield made
    made.close()


def shares(card: FloodedCard, director: Director) -> dict[int, float]:
    director.run(SETTLE)
    return {group: pytest.approx(share, rel=0.05) for group, share in card.shares(director).items() if share}


def test_hard_shares_without_any_daemon(card: FloodedCard, director: Director) -> None:
    _, first = card.flood(cores="60")
    _, second = card.flood(cores="30")
    assert shares(card, director) == {first: 60, second: 30}


def test_a_soft_share_uses_an_idle_card_and_gives_it_back(card: FloodedCard, director: Director) -> None:
    _, soft = card.flood(cores="30", core_limit="100")
    assert shares(card, director) == {soft: 98}
    owner_id, owner = card.flood(cores="70")
    assert shares(card, director) == {soft: 30, owner: 70}
    card.site.delete(owner_id)
    assert shares(card, director) == {soft: 98}


def test_a_changed_share_takes_effect_at_once(card: FloodedCard, director: Director) -> None:
    container, changed = card.flood(cores="20")
    assert shares(card, director) == {changed: 20}
    card.node.vgpuctl("set", container, "--cores", "80")
    assert shares(card, director) == {changed: 80}

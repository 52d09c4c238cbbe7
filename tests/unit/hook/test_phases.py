"""Who may work when: phases that never overlap, in proportion to the shares, the same on all cards of a container."""

from __future__ import annotations

import random

import pytest

from vgpu.config import cardpage
from vgpu.config.cardpage import CHANGE_NS
from vgpu.hook import phases
from vgpu.hook.phases import Phase, Tenant

CARDS = [f"card{index}" for index in range(8)]


def tenants(*shares: int, card: str = "card0") -> list[Tenant]:
    return [Tenant(f"t{index}", (card,), share) for index, share in enumerate(shares)]


def crowd(noise: random.Random) -> list[Tenant]:
    """Containers on up to four cards each, on cards that may be oversubscribed."""
    cards = CARDS[: noise.randrange(1, len(CARDS) + 1)]
    return [
        Tenant(f"t{number}", tuple(noise.sample(cards, min(noise.choice((1, 1, 1, 2, 4)), len(cards)))), share)
        for number in range(noise.randrange(1, 13))
        for share in (noise.choice((1, 5, 10, 20, 30, 50, 99)),)
    ]


def assert_sound(group: list[Tenant], table: phases.Table) -> None:
    for card, members in phases.tenants_by_card(group).items():
        spans = sorted(
            (phase.start, phase.start + phase.length, phase.period)
            for tenant in members
            if (phase := table.get((tenant.name, card)))
        )
        assert len({period for *_, period in spans}) <= 1
        assert all(0 <= begin < end <= period for begin, end, period in spans)
        assert all(end <= begin for (_, end, _), (begin, *_) in zip(spans, spans[1:])), (card, spans)
    for tenant in group:
        assert len({table.get((tenant.name, card)) for card in tenant.cards}) == 1, "the same on all its cards"


@pytest.mark.parametrize(
    "shares", [(50, 50), (10, 90), (20, 30), (5, 5, 10, 10, 15, 15, 20, 20), (80, 90, 100), (1, 99)]
)
def test_one_card_is_cut_as_its_schedule(shares: tuple[int, ...]) -> None:
    table = phases.cut(tenants(*shares))
    wanted = cardpage.schedule("GPU-x", list(shares))
    assert [table[f"t{index}", "card0"] for index in range(len(shares))] == [
        Phase(page.period, page.phase_start, page.phase_length, page.share) for page in wanted
    ]


def test_phases_of_any_crowd_never_overlap_and_are_the_same_on_all_cards() -> None:
    noise = random.Random(11)
    cut = 0
    for _ in range(1500):
        group = crowd(noise)
        table = phases.cut(group, {card: noise.randrange(10**8) for card in CARDS})
        assert_sound(group, table)
        cut += bool(table)
    assert cut > 1000


def test_lengths_are_in_proportion_to_the_shares() -> None:
    noise = random.Random(5)
    for _ in range(200):
        shares = [noise.randrange(1, 100) for _ in range(noise.randrange(2, 10))]
        table = phases.cut(tenants(*shares))
        work = [table[f"t{index}", "card0"].length - CHANGE_NS for index in range(len(shares))]
        whole = sum(work)
        assert all(abs(one - whole * share / sum(shares)) <= len(shares) for one, share in zip(work, shares))


def test_shares_of_more_than_the_card_shrink_alike() -> None:
    table = phases.cut(tenants(100, 50, 50))
    first, second, third = (table[f"t{index}", "card0"] for index in range(3))
    assert first.length - CHANGE_NS == 2 * (second.length - CHANGE_NS)
    assert (second.length, second.share) == (third.length, third.share)
    assert first.start + first.length == second.start
    assert 480_000 < first.share < 500_000


def test_whoever_comes_is_last_and_nobody_changes_places() -> None:
    noise = random.Random(2)
    for _ in range(100):
        shares = [noise.randrange(1, 30) for _ in range(noise.randrange(2, 6))]
        before, after = phases.cut(tenants(*shares)), phases.cut(tenants(*shares, 20))
        order = sorted(after, key=lambda key: after[key].start)
        assert order[:-1] == sorted(before, key=lambda key: before[key].start)
        assert order[-1] == (f"t{len(shares)}", "card0")


def test_other_cards_are_not_touched() -> None:
    others = [Tenant("x", ("card1",), 30), Tenant("y", ("card1",), 50)]
    alone = phases.cut(others)
    beside = phases.cut([*tenants(10, 20, 70), *others])
    assert {key: beside[key] for key in alone} == alone


def test_who_is_alone_has_no_phase() -> None:
    assert phases.cut([Tenant("pair", ("card0", "card1"), 30), Tenant("one", ("card2",), 30)]) == {}


def test_a_pair_has_one_phase_beside_different_neighbours() -> None:
    group = [*tenants(70), Tenant("pair", ("card0", "card1"), 30), Tenant("other", ("card1",), 20)]
    table = phases.cut(group)
    assert_sound(group, table)
    assert table["pair", "card0"] == table["pair", "card1"]
    assert len(table) == 4


def test_who_is_joined_to_a_crowded_card_keeps_its_phase_where_it_is_alone() -> None:
    group = [Tenant("pair", ("card0", "card1"), 30), Tenant("other", ("card1",), 20)]
    table = phases.cut(group)
    assert table["pair", "card0"] == table["pair", "card1"]
    assert table["pair", "card1"].length >= 0.3 * table["pair", "card1"].period


def test_neighbours_that_cannot_agree_have_no_phases_and_others_do() -> None:
    """Three pairs around three cards, half of each: one phase each would need one and a half cards."""
    ring = [Tenant(f"r{at}", (CARDS[at], CARDS[(at + 1) % 3]), 50) for at in range(3)]
    table = phases.cut([*ring, *tenants(40, 60, card="card5")])
    assert set(table) == {("t0", "card5"), ("t1", "card5")}


def test_room_that_spreading_would_take_is_given_up_first() -> None:
    """The same ring with less: spread over the whole card nothing fits, as it was asked for all does."""
    ring = [Tenant(f"r{at}", (CARDS[at], CARDS[(at + 1) % 3]), 30) for at in range(3)]
    table = phases.cut(ring)
    assert_sound(ring, table)
    assert len(table) == 6
    assert all(phase.length >= 0.29 * phase.period for phase in table.values())


def test_a_share_of_nothing_still_has_a_phase() -> None:
    assert phases.cut(tenants(0, 99))["t0", "card0"].length > CHANGE_NS


def test_long_kernels_lengthen_the_period_within_bounds() -> None:
    def period(longest: int) -> int:
        return phases.cut(tenants(50, 50), {"card0": longest})["t0", "card0"].period

    assert period(0) == period(1_000_000) == cardpage.SHORTEST_PERIOD_NS
    assert period(40_000_000) == 160_000_000
    assert period(10**18) == cardpage.LONGEST_PERIOD_NS


def test_a_second_table_may_have_the_period_of_the_first() -> None:
    table = phases.cut(tenants(5, 90), periods={"card0": 100_000_000})
    assert {phase.period for phase in table.values()} == {100_000_000}
    assert_sound(tenants(5, 90), table)


def test_joined_cards_are_found_through_others() -> None:
    group = [
        Tenant("a", ("c0", "c1"), 1),
        Tenant("b", ("c3",), 1),
        Tenant("c", ("c2", "c1"), 1),
        Tenant("d", ("c0",), 1),
    ]
    assert [[tenant.name for tenant in members] for members in phases.joined(group)] in (
        [["a", "c", "d"], ["b"]],
        [["b"], ["a", "c", "d"]],
    )

"""Which containers are lent a card's idle time, on a model of cards and containers with a clock of the test."""

from __future__ import annotations

import random

import pytest
from lending_node import CARD, OTHER, Node, always, soft

from vgpu.node.daemon import lending_policy
from vgpu.node.daemon.lending_policy import LEASE, MS, LendingPolicy, Tenant, shared_out


def hard(name: str, cores: int, cards: tuple[str, ...] = (CARD,)) -> Tenant:
    return Tenant(name, cards, cores, cores)


@pytest.mark.parametrize("limit", [60, 80, 100])
def test_an_idle_card_is_used_up_to_the_core_limit(limit: int) -> None:
    node = Node([soft("a", 30, limit)], {"a": always(100)})
    node.run(300 * MS)
    assert node.run(1000 * MS)["a"] >= 0.97 * limit
    assert node.lent() == {"a": limit}


def test_hard_shares_are_never_lent_anything() -> None:
    node = Node([hard("a", 50), hard("b", 30)], {"a": always(100), "b": always(0)})
    node.run(1000 * MS)
    assert node.writes == 0
    assert not node.policy.is_awake(node.now)


def test_while_several_need_their_time_the_unreserved_rest_is_lent() -> None:
    demands = {"a": always(100), "b": always(100), "idle": always(0)}
    node = Node([soft("a", 20), hard("b", 40), hard("idle", 40)], demands)
    node.run(1000 * MS)
    assert node.lent() == {"a": 59}, "a percent is lost to their changes"
    shares = node.run(1000 * MS)
    assert shares["a"] >= 58
    assert shares["b"] == pytest.approx(40, abs=0.5)


@pytest.mark.parametrize(("used", "kept"), [(3.2, 5), (3.9, 10), (6.6, 10), (6.9, 15)])
def test_a_container_that_uses_little_keeps_half_as_much_again_at_least(used: float, kept: int) -> None:
    """It is rounded up in steps of 5 percent: 5.85 needs 10."""
    node = Node([soft("a", 80), hard("little", 20)], {"a": always(100), "little": always(used)})
    node.run(1000 * MS)
    assert node.lent() == {"a": 100 - kept - 1}, "a percent is lost to changes"


def test_a_container_that_begins_to_need_its_share_has_it_soon() -> None:
    node = Node([soft("a", 50), hard("b", 50)], {"a": always(100), "b": lambda now: 5 if now < 1000 * MS else 100})
    node.run(1000 * MS)
    assert node.lent()["a"] > 50
    node.run(100 * MS)
    assert node.lent() == {}
    assert node.run(500 * MS)["b"] == pytest.approx(50, abs=0.5)


def test_high_priority_goes_first_and_low_never_starves() -> None:
    tenants = [soft("high", 10, 100, 0), soft("low", 10), hard("idle", 80)]
    node = Node(tenants, {"high": always(100), "low": always(100), "idle": always(0)})
    node.run(1000 * MS)
    shares = node.run(1000 * MS)
    assert shares["high"] == pytest.approx(81, abs=2)
    assert shares["low"] == pytest.approx(18, abs=2)


def test_priority_takes_nothing_of_anybodys_share() -> None:
    tenants = [soft("high", 30, 100, 0), soft("low", 70)]
    node = Node(tenants, {"high": always(100), "low": always(100)})
    node.run(1000 * MS)
    shares = node.run(1000 * MS)
    assert (shares["high"], shares["low"]) == (pytest.approx(30, abs=1), pytest.approx(70, abs=1))


def test_a_penalized_tenant_is_lent_nothing_and_has_a_smaller_share() -> None:
    tenants = [soft("liar", 50), soft("b", 50)]
    made = LendingPolicy(tenants, penalized={"liar": 0.8})
    fair = LendingPolicy(tenants)
    assert made.plain["liar"][0].share == int(fair.plain["liar"][0].share * 0.8)
    assert made.plain["b"] == fair.plain["b"]
    assert made.plain["liar"][0].may_borrow == 0, "nor may it take what nobody wants"
    assert fair.plain["liar"][0].may_borrow == 1
    node = Node(tenants, {"liar": always(100), "b": always(0)})
    node.policy = made
    node.run(500 * MS)
    assert node.lent() == {}


def test_a_container_that_never_waits_is_lent_no_more_than_it_uses() -> None:
    node = Node([soft("a", 20), soft("b", 20)], {"a": always(30), "b": always(100)})
    node.run(1000 * MS)
    shares = node.run(1000 * MS)
    assert shares["a"] == pytest.approx(30, abs=2)
    assert shares["b"] == pytest.approx(60, abs=2)


def test_a_container_on_two_cards_is_lent_what_the_fuller_one_has() -> None:
    tenants = [soft("pair", 30, 100, 1, (CARD, OTHER)), hard("one", 50, (CARD,)), hard("other", 20, (OTHER,))]
    demands = {"pair": always(100), "one": always(0), "other": always(100)}
    node = Node(tenants, demands)
    node.run(1000 * MS)
    pages = node.pages["pair"]
    assert pages[CARD].lent_rate == pages[OTHER].lent_rate > 70
    assert node.run(1000 * MS)["other"] == pytest.approx(20, abs=0.5)


def test_schedules_are_written_seldom_when_nothing_changes() -> None:
    node = Node([soft("a", 30)], {"a": always(100)})
    node.run(1000 * MS)
    before = node.writes
    node.run(1000 * MS)
    assert 1000 * MS / LEASE <= node.writes - before <= 1000 * MS / (LEASE - lending_policy.RENEW) + 1


@pytest.mark.parametrize(
    ("idle", "wishes", "expected"),
    [
        (60, [(soft("a", 10), 100), (soft("b", 20), 100)], {"a": 20, "b": 40}),
        (60, [(soft("a", 10), 5), (soft("b", 20), 100)], {"a": 5, "b": 55}),
        (60, [(soft("a", 10), 0), (soft("b", 20), 10)], {"a": 0, "b": 10}),
        (100, [(soft("a", 10, priority=0), 100), (soft("b", 90), 100)], {"a": 90, "b": 10}),
        (100, [(soft("a", 10, priority=0), 30), (soft("b", 90), 100)], {"a": 30, "b": 70}),
        (100, [(soft("a", 10, priority=0), 100), (soft("b", 90), 3)], {"a": 97, "b": 3}),
        (0, [(soft("a", 10), 100)], {"a": 0}),
        (-5, [(soft("a", 10), 100)], {"a": 0}),
    ],
)
def test_idle_time_shared_out(idle: int, wishes: list[tuple[Tenant, int]], expected: dict[str, int]) -> None:
    assert shared_out(idle, wishes) == expected


def test_shared_out_never_gives_more_than_there_is_or_is_wished() -> None:
    noise = random.Random(1)
    for _ in range(500):
        wishes = [
            (soft(f"t{number}", noise.randrange(1, 100), 100, noise.randrange(2)), noise.randrange(0, 100))
            for number in range(noise.randrange(1, 9))
        ]
        idle = noise.randrange(0, 101)
        given = shared_out(idle, wishes)
        assert all(0 <= given[tenant.name] <= wish for tenant, wish in wishes)
        wished = sum(wish for _, wish in wishes)
        assert min(idle, wished) - len(wishes) <= sum(given.values()) <= idle

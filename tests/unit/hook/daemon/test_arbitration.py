"""Who is lent a card's idle time: on a model of cards and containers, by a clock that the test turns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from vgpu.config.core_schedule import Page
from vgpu.node.daemon import lending_policy
from vgpu.node.daemon.lending_policy import LEASE, MS, Arbitration, Observation, Tenant, shared_out

CARD = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
STEP = 10 * MS
BEGIN = 10**12
Demand = Callable[[int], float]  #: ns since the beginning -> percent of a card


def always(percent: float) -> Demand:
    return lambda _: percent


def from_(at: int, percent: float = 100) -> Demand:
    return lambda now: percent if now >= at else 0


def until(at: int, percent: float = 100) -> Demand:
    return lambda now: percent if now < at else 0


class Node:
    """Containers that use what they want and may; the pages are what libvcuda would read."""

    def __init__(self, tenants: list[Tenant], demands: dict[str, Demand]) -> None:
        self.arbitration = Arbitration(tenants)
        self.demands = demands
        self.pages = {name: {page.uuid: page for page in made} for name, made in self.arbitration.plain.items()}
        self.now = BEGIN
        self.used = {(tenant.name, card): 0.0 for tenant in tenants for card in tenant.cards}
        self.wanted = dict.fromkeys(self.used, 0)
        self.waited = dict.fromkeys(self.used, 0)
        self.dead = False
        self.writes = 0

    def rate(self, tenant: Tenant, page: Page) -> float:
        return max(page.lent_rate, tenant.share) if page.lent_until > self.now else tenant.share

    def step(self) -> None:
        """STEP of work, then a decision."""
        tenants = self.arbitration.by_name
        begin = self.now
        self.now += STEP
        for card in {card for _, card in self.used}:
            wishes = {name: self.demands[name](begin - BEGIN) for name, at in self.used if at == card}
            may = {name: min(wish, self.rate(tenants[name], self.pages[name][card])) for name, wish in wishes.items()}
            crowding = max(sum(may.values()) / 100, 1)
            for name, wish in wishes.items():
                self.used[name, card] += may[name] / crowding / 100 * STEP
                if wish > 0:
                    self.wanted[name, card] = self.now
                if wish > may[name] / crowding:
                    self.waited[name, card] = self.now
        if not self.dead:
            self.decide()

    def decide(self) -> None:
        seen = {key: Observation(int(used), self.wanted[key], self.waited[key]) for key, used in self.used.items()}
        for name, pages in self.arbitration.decide(self.now, seen).items():
            self.writes += len(pages)
            self.pages[name].update({page.uuid: page for page in pages})

    def run(self, length: int) -> dict[str, float]:
        """Percent that each used meanwhile, on its first card."""
        before, begin = dict(self.used), self.now
        while self.now < begin + length:
            self.step()
        names = {name: (name, tenant.cards[0]) for name, tenant in self.arbitration.by_name.items()}
        return {name: (self.used[key] - before[key]) * 100 / (self.now - begin) for name, key in names.items()}

    def lent(self) -> dict[str, int]:
        """The rates in force now, by tenant."""
        return {
            name: page.lent_rate
            for name, pages in self.pages.items()
            for page in pages.values()
            if page.lent_until > self.now
        }


def soft(name: str, cores: int, limit: int = 100, priority: int = 1, cards: tuple[str, ...] = (CARD,)) -> Tenant:
    return Tenant(name, cards, cores, limit, priority)


def hard(name: str, cores: int, cards: tuple[str, ...] = (CARD,)) -> Tenant:
    return Tenant(name, cards, cores, cores)


@pytest.mark.parametrize("limit", [60, 80, 100])
def test_an_idle_card_is_used_up_to_the_core_limit(limit: int) -> None:
    node = Node([soft("a", 30, limit)], {"a": always(100)})
    node.run(300 * MS)
    assert node.run(1000 * MS)["a"] >= 0.97 * limit
    assert node.lent() == {"a": limit}


def test_an_idle_owners_time_is_lent_and_taken_back_in_time() -> None:
    node = Node([soft("a", 50), soft("b", 50)], {"a": always(100), "b": from_(1000 * MS)})
    node.run(500 * MS)
    assert node.run(500 * MS)["a"] >= 97
    node.run(200 * MS)
    shares = node.run(1000 * MS)
    assert shares["a"] == pytest.approx(50, abs=2)
    assert shares["b"] == pytest.approx(50, abs=2)
    assert node.lent() == {}
    assert all(page.lent_until == 0 for pages in node.pages.values() for page in pages.values())


def test_hard_shares_are_never_lent_anything() -> None:
    node = Node([hard("a", 50), hard("b", 30)], {"a": always(100), "b": always(0)})
    node.run(1000 * MS)
    assert node.writes == 0
    assert not node.arbitration.is_awake(node.now)


def test_a_dead_arbiters_loan_ends_by_itself() -> None:
    node = Node([soft("a", 30), hard("b", 70)], {"a": always(100), "b": always(0)})
    node.run(500 * MS)
    assert node.lent() == {"a": 100}
    node.dead = True
    node.run(LEASE)
    assert node.lent() == {}
    assert node.run(500 * MS)["a"] == pytest.approx(30)


def test_what_could_not_be_written_is_decided_again() -> None:
    node = Node([soft("a", 30)], {"a": always(100)})
    node.run(500 * MS)
    node.arbitration.forget()
    node.pages["a"][CARD].lent_until = 0
    node.run(2 * STEP)
    assert node.lent() == {"a": 100}


def test_idle_time_is_shared_by_the_shares() -> None:
    demands = {"a": always(100), "b": always(100), "idle": always(0)}
    node = Node([soft("a", 20), soft("b", 40), hard("idle", 40)], demands)
    node.run(1000 * MS)
    shares = node.run(1000 * MS)
    assert shares["a"] == pytest.approx(33, abs=1.5)
    assert shares["b"] == pytest.approx(66, abs=1.5)


def test_while_several_need_their_time_what_nobody_keeps_is_lent() -> None:
    demands = {"a": always(100), "b": always(100), "idle": always(0)}
    node = Node([soft("a", 20), hard("b", 40), hard("idle", 40)], demands)
    node.run(1000 * MS)
    assert node.lent() == {"a": 59}, "a percent is lost to their changes"
    shares = node.run(1000 * MS)
    assert shares["a"] >= 58
    assert shares["b"] == pytest.approx(40, abs=0.5)


def test_who_uses_little_leaves_the_rest() -> None:
    node = Node([soft("a", 50), hard("little", 50)], {"a": always(100), "little": always(4)})
    node.run(1000 * MS)
    assert node.lent() == {"a": 84}, "15 are kept, and a percent is lost to changes"
    shares = node.run(1000 * MS)
    assert shares["little"] == pytest.approx(4, abs=0.1)
    assert shares["a"] == pytest.approx(84, abs=0.1)


@pytest.mark.parametrize(("used", "kept"), [(3.2, 5), (3.9, 10), (6.6, 10), (6.9, 15)])
def test_who_uses_little_keeps_half_as_much_again_at_least(used: float, kept: int) -> None:
    """In steps of 5 percent, up: 5.85 needs 10."""
    node = Node([soft("a", 80), hard("little", 20)], {"a": always(100), "little": always(used)})
    node.run(1000 * MS)
    assert node.lent() == {"a": 100 - kept - 1}, "a percent is lost to changes"


def test_who_uses_little_leaves_the_rest_while_others_need_their_shares_too() -> None:
    tenants = [soft("a", 30), hard("b", 30), hard("little", 40)]
    node = Node(tenants, {"a": always(100), "b": always(100), "little": always(5)})
    node.run(1000 * MS)
    shares = node.run(1000 * MS)
    assert shares["little"] == pytest.approx(5, abs=0.1)
    assert shares["b"] == pytest.approx(30, abs=0.5)
    assert shares["a"] >= 58


def test_who_begins_to_need_its_share_has_it_soon() -> None:
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


def test_a_doubted_tenant_is_lent_nothing_and_has_less_of_a_share() -> None:
    tenants = [soft("liar", 50), soft("b", 50)]
    made = Arbitration(tenants, doubted={"liar": 0.8})
    fair = Arbitration(tenants)
    assert made.plain["liar"][0].share == int(fair.plain["liar"][0].share * 0.8)
    assert made.plain["b"] == fair.plain["b"]
    node = Node(tenants, {"liar": always(100), "b": always(0)})
    node.arbitration = made
    node.run(500 * MS)
    assert node.lent() == {}


def test_who_waits_for_nothing_is_lent_no_more_than_it_uses() -> None:
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


def test_pages_are_written_seldom_when_nothing_changes() -> None:
    node = Node([soft("a", 30)], {"a": always(100)})
    node.run(1000 * MS)
    before = node.writes
    node.run(1000 * MS)
    assert 1000 * MS / LEASE <= node.writes - before <= 1000 * MS / (LEASE - lending_policy.RENEW) + 1


def test_what_tenants_say_never_breaks_it_nor_gets_anybody_beyond_his_limit() -> None:
    noise = random.Random(9)
    words = [0, 1, BEGIN, BEGIN + 10**9, 2**63, 2**64 - 1]
    for _ in range(40):
        tenants = [
            soft(f"t{number}", noise.randrange(0, 60), noise.randrange(60, 101), noise.randrange(3), cards)
            for number in range(noise.randrange(1, 6))
            for cards in (noise.choice([(CARD,), (OTHER,), (CARD, OTHER)]),)
        ]
        made = Arbitration(tenants)
        for step in range(60):
            now = BEGIN + step * STEP
            seen = {
                (tenant.name, card): Observation(*(noise.choice(words) for _ in range(4)))
                for tenant in tenants
                for card in tenant.cards
                if noise.random() < 0.9
            }
            for name, pages in made.decide(now, seen).items():
                for page in pages:
                    assert page.lent_rate <= max(made.by_name[name].core_limit, 1)
                    assert page.lent_until in (0, now + LEASE)
            assert_no_card_is_promised_twice(made, now)


def assert_no_card_is_promised_twice(made: Arbitration, now: int) -> None:
    """What is lent, and what is kept for those who want something and are lent nothing."""
    lent = made.lent(now)
    for members in made.on_card.values():
        wanting = [tenant for tenant in members if tenant.name not in lent and made._is_active(tenant, now)]
        rates = [lent[tenant.name] for tenant in members if tenant.name in lent]
        assert not rates or sum(rates) + sum(made._kept(tenant, now) for tenant in wanting) <= 100


def test_random_demands_always_get_their_shares_and_leave_little_idle() -> None:
    """Whoever wants its share has it; while somebody could use more, the card is busy, but for what is kept for those
    who use little of theirs.
    """
    noise = random.Random(4)
    for _ in range(25):
        cores = noise.choice([(50, 50), (30, 70), (20, 30, 50), (10, 20, 30, 40)])
        tenants = [soft(f"t{number}", share, noise.choice([share, 100])) for number, share in enumerate(cores)]
        demands = {tenant.name: always(noise.choice([0, 0, 5, 100])) for tenant in tenants}
        node = Node(tenants, demands)
        node.run(1000 * MS)
        shares = node.run(1000 * MS)
        for tenant in tenants:
            assert shares[tenant.name] >= min(demands[tenant.name](0), tenant.cores) - 2, (cores, shares)
        if any(demands[tenant.name](0) == 100 and tenant.core_limit == 100 for tenant in tenants):
            kept = sum(tenant.cores for tenant in tenants if demands[tenant.name](0) == 5)
            assert sum(shares.values()) + kept >= 95, (cores, shares)


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

"""Lending of a card's idle time over long runs with random demands."""

from __future__ import annotations

import random

from lending_node import BEGIN, CARD, OTHER, STEP, Node, always, soft

from vgpu.node.daemon.lending_policy import LEASE, MS, LendingPolicy, Observation


def test_no_report_breaks_it_or_lends_a_tenant_more_than_its_limit() -> None:
    noise = random.Random(9)
    words = [0, 1, BEGIN, BEGIN + 10**9, 2**63, 2**64 - 1]
    for _ in range(40):
        tenants = [
            soft(f"t{number}", noise.randrange(0, 60), noise.randrange(60, 101), noise.randrange(3), cards)
            for number in range(noise.randrange(1, 6))
            for cards in (noise.choice([(CARD,), (OTHER,), (CARD, OTHER)]),)
        ]
        made = LendingPolicy(tenants)
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
            assert_no_card_is_lent_twice(made, now)


def assert_no_card_is_lent_twice(made: LendingPolicy, now: int) -> None:
    """Assert this for the time that is lent, and that is kept for tenants that want some and are lent none."""
    lent = made.lent(now)
    for members in made.on_card.values():
        wanting = [tenant for tenant in members if tenant.name not in lent and made._is_active(tenant, now)]
        rates = [lent[tenant.name] for tenant in members if tenant.name in lent]
        assert not rates or sum(rates) + sum(made._kept(tenant, now) for tenant in wanting) <= 100


def test_random_demands_always_get_their_shares_and_leave_little_idle() -> None:
    """A tenant that wants its share gets it. While a tenant could use more, the card is busy, except for the time
    that is kept for tenants that use little of their shares.
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

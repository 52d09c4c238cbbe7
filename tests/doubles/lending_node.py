"""Cards and containers as the lending policy sees them, with a clock that the test advances."""

from __future__ import annotations

from collections.abc import Callable

from vgpu.config.core_schedule import CoreSchedule
from vgpu.node.daemon.lending_policy import MS, LendingPolicy, Observation, Tenant

CARD = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
STEP = 10 * MS
BEGIN = 10**12
Demand = Callable[[int], float]  #: ns since the beginning -> percent of a card


def always(percent: float) -> Demand:
    return lambda _: percent


class Node:
    """Containers that use as much as they want and may. `pages` are the schedules that libvcuda would read."""

    def __init__(self, tenants: list[Tenant], demands: dict[str, Demand]) -> None:
        self.policy = LendingPolicy(tenants)
        self.demands = demands
        self.pages = {name: {page.uuid: page for page in made} for name, made in self.policy.plain.items()}
        self.now = BEGIN
        self.used = {(tenant.name, card): 0.0 for tenant in tenants for card in tenant.cards}
        self.wanted = dict.fromkeys(self.used, 0)
        self.waited = dict.fromkeys(self.used, 0)
        self.writes = 0

    def rate(self, tenant: Tenant, page: CoreSchedule) -> float:
        return max(page.lent_rate, tenant.share) if page.lent_until > self.now else tenant.share

    def step(self) -> None:
        """Run the containers for STEP, then decide."""
        tenants = self.policy.by_name
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
        seen = {key: Observation(int(used), self.wanted[key], self.waited[key]) for key, used in self.used.items()}
        for name, pages in self.policy.decide(self.now, seen).items():
            self.writes += len(pages)
            self.pages[name].update({page.uuid: page for page in pages})

    def run(self, length: int) -> dict[str, float]:
        """Percent of its first card that each container used meanwhile."""
        before, begin = dict(self.used), self.now
        while self.now < begin + length:
            self.step()
        names = {name: (name, tenant.cards[0]) for name, tenant in self.policy.by_name.items()}
        return {name: (self.used[key] - before[key]) * 100 / (self.now - begin) for name, key in names.items()}

    def lent(self) -> dict[str, int]:
        """The lent rates in force now, by tenant."""
        return {
            name: page.lent_rate
            for name, pages in self.pages.items()
            for page in pages.values()
            if page.lent_until > self.now
        }


def soft(name: str, cores: int, limit: int = 100, priority: int = 1, cards: tuple[str, ...] = (CARD,)) -> Tenant:
    return Tenant(name, cards, cores, limit, priority)

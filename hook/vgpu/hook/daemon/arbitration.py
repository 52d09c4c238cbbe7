"""Who may use a card's idle time: from what containers say of their use to the pages that lend it, without any I/O.

Belongs here: the policy alone. The caller tells the tenants, then again and again the time and what each tenant's
region says, and writes the pages that come back; by a virtual clock as well as by the host's. All times are ns of one
clock.

An owner's share is its own whenever it wants it. What nobody wants is lent to those who may have more (`core_limit`
above `cores`) and want it, for LEASE at a time: a loan that nobody renews ends by itself, for all who share the card at
the same instant. While several need their time, all who want some get a second table of phases for as long, cut by what
each may use; the idle keep their own phase, in which they can begin at once, and are taken in with the next decision.

What tenants say is bounded: it decides who is asked to wait on this very card, never beyond anybody's limits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from vgpu.config.cardpage import LONGEST_PERIOD_NS, Page
from vgpu.config.request import LOW_PRIORITY
from vgpu.hook import phases
from vgpu.hook.phases import Phase

MS = 1_000_000
Table = dict[tuple[str, str], Phase]

LEASE = 100 * MS  #: how long a loan lasts that is not renewed
RENEW = 50 * MS  #: what is left of it when it is
IDLE = 50 * MS  #: without a launch, beyond its longest kernels: longer than a waiting launch sleeps at a time
WINDOW = 50 * MS  #: over which use is measured
RECENT = 100 * MS  #: a launch that had to wait wants more
HOLD = 500 * MS  #: how long who used much counts as one who needs its phase
LEAST_SHARE_KEPT = 4  #: of those who use little, this part of the share stays free for them at least
OWNERS_ROOM = 1.5  #: of the use of one who uses little: what it may use at once,
BORROWERS_ROOM = 1.25  #: and of a borrower that waits for nothing
STEP = 5  #: percent: loans are no finer, so that they seldom change
LOW_PART = 10  #: percent of what is idle that low priority has before high priority takes it all


@dataclasses.dataclass(frozen=True)
class Tenant:
    """A container with `cores` percent of each of its cards, guaranteed, and never more than `core_limit`."""

    name: str
    cards: tuple[str, ...]
    cores: int
    core_limit: int
    priority: int = LOW_PRIORITY

    @property
    def share(self) -> int:
        return max(self.cores, 1)

    @property
    def is_soft(self) -> bool:
        return self.core_limit > self.share


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a tenant's region says of one card: ns used in all, when a launch was last asked for and had to wait.

    Not `is_known`: the region cannot be read. Then the tenant needs its share, and nothing more.
    """

    used: int
    wanted: int
    waited: int
    longest: int = 0
    is_known: bool = True


class _Use:
    """A tenant's use of one card, followed."""

    def __init__(self, now: int, seen: Observation) -> None:
        self.history = [(now, seen.used)]
        self.moved = 0
        self.needs_until = now + WINDOW  # nothing is known yet: to err on the tenant's side
        self.last = seen

    def follow(self, now: int, seen: Observation) -> None:
        if seen.used < self.last.used:  # a new region, or scribbled
            self.history = []
        if seen.used != self.last.used:
            self.moved = now
        self.last = seen
        self.history.append((now, seen.used))
        while len(self.history) > 2 and now - self.history[1][0] >= WINDOW:
            self.history.pop(0)

    def percent(self) -> float:
        (begin, before), (end, after) = self.history[0], self.history[-1]
        return (after - before) * 100 / (end - begin) if end > begin else 0.0

    def wants(self, now: int) -> bool:
        patience = IDLE + 2 * min(self.last.longest, LONGEST_PERIOD_NS)
        return now - self.last.wanted < patience or (self.moved > 0 and now - self.moved < patience)

    def wants_more(self, now: int) -> bool:
        return now - self.last.waited < RECENT


@dataclasses.dataclass(frozen=True)
class Loan:
    """What one group of joined cards gets beyond its plain table: rates by tenant, phases by (tenant, card)."""

    rates: dict[str, int]
    table: Table


NO_LOAN = Loan({}, {})


class Arbitration:
    """The cards of one node. `longest`: ns of a card's longest kernels; `doubted`: tenants that are lent nothing.

    A doubted tenant's own phase is shortened to the part that is told, while others share its cards.
    """

    def __init__(
        self,
        tenants: Iterable[Tenant],
        longest: Mapping[str, int] | None = None,
        doubted: Mapping[str, float] | None = None,
    ) -> None:
        self.tenants = list(tenants)
        self.by_name = {tenant.name: tenant for tenant in self.tenants}
        self.doubted = dict(doubted or {})
        cut = [phases.Tenant(tenant.name, tenant.cards, tenant.share) for tenant in self.tenants]
        self.table = phases.cut(cut, longest)
        self.periods = {card: phase.period for (_, card), phase in self.table.items()}
        self.plain = {name: [self._narrowed(name, page) for page in made] for name, made in self._pages(cut).items()}
        self.groups = [[self.by_name[tenant.name] for tenant in group] for group in phases.joined(cut)]
        self.crowd = {card: len(members) for card, members in phases.tenants_by_card(cut).items()}
        self._uses: dict[tuple[str, str], _Use] = {}
        self._loans: dict[int, tuple[Loan, int]] = {}  # by the group's number: what was lent, and until when

    def _pages(self, cut: list[phases.Tenant]) -> dict[str, list[Page]]:
        return phases.pages(cut, self.table)

    def _narrowed(self, name: str, page: Page) -> Page:
        page.phase_length = int(page.phase_length * self.doubted.get(name, 1))
        return page

    @property
    def borrowers(self) -> list[Tenant]:
        """Who may be lent something at all."""
        return [tenant for tenant in self.tenants if tenant.is_soft and tenant.name not in self.doubted]

    def lent(self, now: int) -> dict[str, int]:
        """The rates that are lent at this moment, by tenant; only what is more than the tenant's own."""
        return {
            name: rate
            for loan, until in self._loans.values()
            for name, rate in loan.rates.items()
            if until > now and rate > self.by_name[name].share
        }

    def is_awake(self, now: int) -> bool:
        """Whether somebody has borrowed, or could want to at any moment."""
        return bool(self._loans) or any(
            (use := self._uses.get((tenant.name, card))) is not None and use.wants(now)
            for tenant in self.borrowers
            for card in tenant.cards
        )

    def take_over(self, before: Arbitration) -> None:
        """Go on with what was seen of the same tenants, and with nothing lent: whoever changes them has ended that."""
        self._uses = {key: use for key, use in before._uses.items() if key[0] in self.by_name}

    def decide(self, now: int, seen: Mapping[tuple[str, str], Observation]) -> dict[str, list[Page]]:
        """The pages to be written now, by tenant. `seen` by (tenant, card); who is missing wants nothing.

        What is returned counts as written; if it was not, `forget`.
        """
        self._follow(now, seen)
        changed: dict[str, list[Page]] = {}
        for number, group in enumerate(self.groups):
            loan = self._loan(group, now)
            before, until = self._loans.get(number, (NO_LOAN, 0))
            if loan != before or (loan.rates and until - now < RENEW):
                changed.update(self._changed(group, before, loan, now + LEASE))
                self._loans[number] = (loan, now + LEASE)
            if not loan.rates:
                self._loans.pop(number, None)
        return changed

    def forget(self) -> None:
        """Nothing of what was decided last is known to be written: what was lent ends by itself."""
        self._loans.clear()

    # What tenants do

    def _follow(self, now: int, seen: Mapping[tuple[str, str], Observation]) -> None:
        for key, observation in seen.items():
            use = self._uses.get(key)
            if use is None:
                use = self._uses[key] = _Use(now, observation)
            else:
                use.follow(now, observation)
            if key[0] in self.by_name and (not observation.is_known or use.percent() >= self._much(*key)):
                use.needs_until = now + HOLD
        self._uses = {key: use for key, use in self._uses.items() if key in seen}

    def _much(self, name: str, card: str) -> float:
        """Percent of use from which on a tenant needs its phase: half of what it would get without any."""
        return min(self.by_name[name].share, 100 / self.crowd.get(card, 1)) / 2

    def _of(self, tenant: Tenant) -> list[_Use]:
        return [use for card in tenant.cards if (use := self._uses.get((tenant.name, card))) is not None]

    def _is_active(self, tenant: Tenant, now: int) -> bool:
        return any(use.wants(now) for use in self._of(tenant))

    def _needs_phase(self, tenant: Tenant, now: int) -> bool:
        return tenant.name in self.doubted or any(now < use.needs_until for use in self._of(tenant))

    # What is lent

    def _loan(self, group: list[Tenant], now: int) -> Loan:
        active = [tenant for tenant in group if self._is_active(tenant, now)]
        if not any(tenant.is_soft and tenant.name not in self.doubted for tenant in active):
            return NO_LOAN
        needing = [tenant for tenant in active if self._needs_phase(tenant, now)]
        crowded = any(len([tenant for tenant in needing if card in tenant.cards]) > 1 for card in self._cards(group))
        kept = {tenant.name: self._kept(tenant, crowded or tenant in needing) for tenant in active}
        rates = self._rates(active, kept, now)
        if all(rates[tenant.name] <= tenant.share for tenant in active):
            return NO_LOAN
        if not crowded or not self._cards(group) <= set(self.periods):
            return Loan(rates, {})
        cut = [phases.Tenant(tenant.name, tenant.cards, rates[tenant.name]) for tenant in active]
        table = phases.cut(cut, periods=self.periods)
        for part in phases.joined(cut):
            if len(part) > 1 and (part[0].name, part[0].cards[0]) not in table:
                return NO_LOAN  # they do not fit: rather each in its own phase
        return Loan({name: self._rounded(name, rate, table) for name, rate in rates.items()}, table)

    def _rounded(self, name: str, rate: int, table: Table) -> int:
        """The rate less what changing containers costs."""
        phase = table.get((name, self.by_name[name].cards[0]))
        return max(min(rate, round(phase.share / 10_000)), 1) if phase else rate

    @staticmethod
    def _cards(group: list[Tenant]) -> set[str]:
        return {card for tenant in group for card in tenant.cards}

    def _kept(self, tenant: Tenant, whole: bool) -> int:
        """Percent that nobody else may have: the share, or of who uses little of it somewhat more than that."""
        if whole:
            return tenant.share
        used = max((use.percent() for use in self._of(tenant)), default=0.0)
        return min(_stepped(max(OWNERS_ROOM * used, tenant.share / LEAST_SHARE_KEPT)), tenant.share)

    def _rates(self, active: list[Tenant], kept: dict[str, int], now: int) -> dict[str, int]:
        """What each may use: its share, and of the idle time what falls to it on the fullest of its cards."""
        extra = {tenant.name: 100 for tenant in active}
        for card in self._cards(active):
            here = [tenant for tenant in active if card in tenant.cards]
            idle = 100 - sum(kept[tenant.name] for tenant in here)
            wishes = [(tenant, self._wish(tenant, kept[tenant.name], now)) for tenant in here]
            for name, part in shared_out(idle, wishes).items():
                extra[name] = min(extra[name], part)
        return {
            tenant.name: max(tenant.share, min(kept[tenant.name] + extra[tenant.name], tenant.core_limit))
            for tenant in active
        }

    def _wish(self, tenant: Tenant, kept: int, now: int) -> int:
        """Percent beyond what is kept for it that the tenant could use."""
        if not tenant.is_soft or tenant.name in self.doubted:
            return 0
        uses = self._of(tenant)
        if any(use.wants_more(now) for use in uses):
            return tenant.core_limit - kept
        used = max((use.percent() for use in uses), default=0.0)
        return max(0, min(tenant.core_limit, _stepped(BORROWERS_ROOM * used)) - kept)

    # Pages

    def _changed(self, group: list[Tenant], before: Loan, loan: Loan, until: int) -> dict[str, list[Page]]:
        return {
            tenant.name: [self._page(page, tenant.name, loan, until) for page in self.plain[tenant.name]]
            for tenant in group
            if tenant.name in loan.rates or tenant.name in before.rates
        }

    @staticmethod
    def _page(plain: Page, name: str, loan: Loan, until: int) -> Page:
        values = plain.values()
        page = Page(plain.uuid, *values[:7])
        if name in loan.rates:
            phase = loan.table.get((name, plain.uuid), Phase(0, 0, 0, 0))
            page.lent_until, page.lent_rate = until, loan.rates[name]
            page.lent_start, page.lent_length = phase.start, phase.length
        return page


def shared_out(idle: int, wishes: list[tuple[Tenant, int]]) -> dict[str, int]:
    """`idle` percent of a card among tenants that wish for so much more: in proportion to their shares.

    High priority (0) goes first; of what is idle, low priority keeps LOW_PART percent as far as it wishes for it.
    """
    high = [(tenant, wish) for tenant, wish in wishes if tenant.priority == 0]
    low = [(tenant, wish) for tenant, wish in wishes if tenant.priority != 0]
    idle = max(idle, 0)
    for_low = min(-(-idle * LOW_PART // 100), sum(wish for _, wish in low))
    first = _filled(idle - for_low, high)
    return {**first, **_filled(idle - sum(first.values()), low)}


def _stepped(percent: float) -> int:
    return -(-int(percent) // STEP) * STEP


def _filled(amount: int, wishes: list[tuple[Tenant, int]]) -> dict[str, int]:
    """`amount` in proportion to the shares, nobody more than he wishes for; what one leaves goes to the others."""
    given = {tenant.name: 0 for tenant, _ in wishes}
    open_wishes = [(tenant, wish) for tenant, wish in wishes if wish > 0]
    while open_wishes and amount > 0:
        total = sum(tenant.share for tenant, _ in open_wishes)
        sated = [item for item in open_wishes if item[1] <= amount * item[0].share / total]
        if not sated:
            given.update({tenant.name: amount * tenant.share // total for tenant, _ in open_wishes})
            break
        for tenant, wish in sated:
            given[tenant.name] = wish
            amount -= wish
        open_wishes = [item for item in open_wishes if item not in sated]
    return given

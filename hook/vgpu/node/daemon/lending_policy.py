"""Who may use a card's idle time: from what containers say of their use to the pages that lend it, without any I/O.

Belongs here: the policy alone. The caller tells the tenants, then again and again the time and what each tenant's
region says, and writes the pages that come back; by a virtual clock as well as by the host's. All times are ns of one
clock.

An owner's share is its own whenever it wants it. What nobody wants is lent to those who may have more (`core_limit`
above `cores`) and want it, as a rate, for LEASE at a time: a loan that nobody renews ends by itself. Containers visit
their card one at a time whatever their rates, so a borrower is in nobody's way but for its visits' length.

What tenants say is bounded: it decides who is asked to wait on this very card, never beyond anybody's limits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from vgpu.config import core_schedule
from vgpu.config.core_schedule import CHANGE_NS, LONGEST_PERIOD_NS, CoreSchedule
from vgpu.config.request import LOW_PRIORITY

MS = 1_000_000

LEASE = 100 * MS  #: how long a loan lasts that is not renewed
RENEW = 50 * MS  #: what is left of it when it is
IDLE = 50 * MS  #: without a launch, beyond its longest kernels: longer than a waiting launch sleeps at a time
WINDOW = 50 * MS  #: over which use is measured
RECENT = 100 * MS  #: a launch that had to wait wants more
HOLD = 500 * MS  #: how long who used much counts as one who needs its share
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


class LendingPolicy:
    """The cards of one node. `doubted`: tenants that are lent nothing, and the part of its share that each has beside
    others.
    """

    def __init__(self, tenants: Iterable[Tenant], penalized: Mapping[str, float] | None = None) -> None:
        self.by_name = {tenant.name: tenant for tenant in tenants}
        self.penalized = dict(penalized or {})
        held = {tenant.name: dict.fromkeys(tenant.cards, tenant.share) for tenant in self.by_name.values()}
        self.plain = core_schedule.schedules(held)
        for name, part in self.penalized.items():
            for page in self.plain.get(name, []):
                page.share = int(page.share * part)
        self.periods = {page.uuid: page.period for made in self.plain.values() for page in made}
        self.on_card: dict[str, list[Tenant]] = {}
        for tenant in self.by_name.values():
            for card in tenant.cards:
                self.on_card.setdefault(card, []).append(tenant)
        self._uses: dict[tuple[str, str], _Use] = {}
        self._loans: dict[str, tuple[int, int]] = {}  # the rate, and until when

    @property
    def borrowers(self) -> list[Tenant]:
        """Who may be lent something at all."""
        return [tenant for tenant in self.by_name.values() if self._may_borrow(tenant)]

    def _may_borrow(self, tenant: Tenant) -> bool:
        return tenant.is_soft and tenant.name not in self.penalized

    def lent(self, now: int) -> dict[str, int]:
        """The rates that are lent at this moment, by tenant."""
        return {name: rate for name, (rate, until) in self._loans.items() if until > now}

    def is_awake(self, now: int) -> bool:
        """Whether somebody has borrowed, or could want to at any moment."""
        return bool(self._loans) or any(self._is_active(tenant, now) for tenant in self.borrowers)

    def take_over(self, before: LendingPolicy) -> None:
        """Go on with what was seen of the same tenants, and with nothing lent: whoever changes them has ended that."""
        self._uses = {key: use for key, use in before._uses.items() if key[0] in self.by_name}

    def decide(self, now: int, seen: Mapping[tuple[str, str], Observation]) -> dict[str, list[CoreSchedule]]:
        """The pages to be written now, by tenant. `seen` by (tenant, card); who is missing wants nothing.

        What is returned counts as written; if it was not, `forget`.
        """
        self._follow(now, seen)
        rates = self._rates(now)
        changed: dict[str, list[CoreSchedule]] = {}
        for name in self._loans.keys() - rates.keys():
            del self._loans[name]
            changed[name] = self.plain[name]
        for name, rate in rates.items():
            before, until = self._loans.get(name, (0, 0))
            if rate != before or until - now < RENEW:
                self._loans[name] = (rate, now + LEASE)
                changed[name] = [page.lending(rate, now + LEASE) for page in self.plain[name]]
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
        """Percent of use from which on a tenant needs its share: half of what it gets where all want theirs."""
        return min(self.by_name[name].share, 100 / max(len(self.on_card.get(card, ())), 1)) / 2

    def _of(self, tenant: Tenant) -> list[_Use]:
        return [use for card in tenant.cards if (use := self._uses.get((tenant.name, card))) is not None]

    def _is_active(self, tenant: Tenant, now: int) -> bool:
        return any(use.wants(now) for use in self._of(tenant))

    # What is lent

    def _rates(self, now: int) -> dict[str, int]:
        """What is lent: of each card's idle time what falls to a tenant, on the fullest of its cards."""
        extra: dict[str, int] = {}
        kept: dict[str, int] = {}
        for card, tenants in self.on_card.items():
            active = [tenant for tenant in tenants if self._is_active(tenant, now)]
            kept.update({tenant.name: self._kept(tenant, now) for tenant in active})
            wishes = [(tenant, self._wish(tenant, kept[tenant.name], now)) for tenant in active]
            idle = 100 - sum(kept[tenant.name] for tenant in active) - self._changes(card, len(active))
            for name, part in shared_out(idle, wishes).items():
                extra[name] = min(extra.get(name, part), part)
        rates = {name: min(kept[name] + part, self.by_name[name].core_limit) for name, part in extra.items()}
        return {name: rate for name, rate in rates.items() if rate > self.by_name[name].share}

    def _changes(self, card: str, active: int) -> int:
        """Percent of the card that is lost when so many containers take turns there."""
        return -(-active * CHANGE_NS * 100 // self.periods[card]) if active > 1 else 0

    def _kept(self, tenant: Tenant, now: int) -> int:
        """Percent that nobody else may have: the share, or of who uses little of it somewhat more than that."""
        uses = self._of(tenant)
        if tenant.name in self.penalized or any(now < use.needs_until for use in uses):
            return tenant.share
        used = max((use.percent() for use in uses), default=0.0)
        return min(_stepped(max(OWNERS_ROOM * used, tenant.share / LEAST_SHARE_KEPT)), tenant.share)

    def _wish(self, tenant: Tenant, kept: int, now: int) -> int:
        """Percent beyond what is kept for it that the tenant could use."""
        if not self._may_borrow(tenant):
            return 0
        uses = self._of(tenant)
        if any(use.wants_more(now) for use in uses):
            return tenant.core_limit - kept
        used = max((use.percent() for use in uses), default=0.0)
        return max(0, min(tenant.core_limit, _stepped(BORROWERS_ROOM * used)) - kept)


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
    """The least multiple of STEP that is not below `percent`."""
    return math.ceil(percent / STEP) * STEP


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

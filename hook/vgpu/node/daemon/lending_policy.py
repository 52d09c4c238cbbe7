"""Which container may use a card's idle time: computes the core schedules that lend it.

Belongs here: the policy, without any I/O. The caller passes the tenants once, and then again and again the time and
what each tenant's usage region reports. It writes the schedules that `decide` returns. The clock may be the host's or a
virtual one; all times are ns of one clock. Does not belong here: reading regions and writing schedules
(vgpu.node.daemon.lender).

A tenant can use its share whenever it wants it. Time that no tenant wants is lent, as a rate, to tenants that want more
than their share and may have it (`core_limit` above `cores`). A loan lasts for LEASE; a loan that is not renewed
expires. Containers use their card one at a time whatever their rates, so a borrower delays the others only by the
length of its time slices.

A tenant writes its own region, so the effect of what it reports is bounded: it changes only which tenants of this card
wait, and no tenant ever gets more than its limits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from vgpu.config import core_schedule
from vgpu.config.core_schedule import CHANGE_NS, LONGEST_PERIOD_NS, CoreSchedule
from vgpu.config.request import LOW_PRIORITY

MS = 1_000_000

LEASE = 100 * MS  #: a loan that is not renewed expires after this time
RENEW = 50 * MS  #: a loan is renewed when less than this time is left
IDLE = (
    50 * MS
)  #: a tenant without a launch for this time, beyond its longest kernels, is idle; a waiting launch sleeps less
WINDOW = 50 * MS  #: use is measured over this time
RECENT = 100 * MS  #: a tenant wants more for this time after one of its launches had to wait
HOLD = 500 * MS  #: a tenant that used much of its share keeps all of it for this time
LEAST_SHARE_KEPT = 4  #: a tenant that uses little keeps at least 1/4 of its share
OWNERS_ROOM = 1.5  #: a tenant that uses little keeps this multiple of its use
BORROWERS_ROOM = 1.25  #: a borrower none of whose launches waits may borrow up to this multiple of its use
STEP = 5  #: percent: rates are multiples of this, so that loans seldom change
LOW_PART = 10  #: percent of the idle time that low priority gets before high priority gets the rest


@dataclasses.dataclass(frozen=True)
class Tenant:
    """A container with `cores` percent of each of its cards guaranteed, and at most `core_limit` percent."""

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
    """What a tenant's region reports about one card.

    `used`: ns of use in all. `wanted`: when a program last launched a kernel. `waited`: when a launch last had to wait.
    `longest`: ns of the longest kernel. If the region cannot be read, `is_known` is False; then the tenant needs its
    share, and nothing more.
    """

    used: int
    wanted: int
    waited: int
    longest: int = 0
    is_known: bool = True


class _Use:
    """A tenant's use of one card over time."""

    def __init__(self, now: int, seen: Observation) -> None:
        self.history = [(now, seen.used)]
        self.moved = 0
        self.needs_until = now + WINDOW  # its use is not known yet, so it keeps its share
        self.last = seen

    def follow(self, now: int, seen: Observation) -> None:
        if seen.used < self.last.used:  # the region is new, or the tenant has written into it
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
    """The tenants and cards of one node.

    `penalized`: the tenants that are lent nothing -> the part of its share that each has beside other tenants.
    `changes`: as in core_schedule.schedules.
    """

    def __init__(
        self,
        tenants: Iterable[Tenant],
        penalized: Mapping[str, float] | None = None,
        changes: Mapping[str, int] | None = None,
    ) -> None:
        self.by_name = {tenant.name: tenant for tenant in tenants}
        self.penalized = dict(penalized or {})
        held = {tenant.name: dict.fromkeys(tenant.cards, tenant.share) for tenant in self.by_name.values()}
        self.changes = dict(changes or {})
        self.plain = core_schedule.schedules(held, self.changes)
        for name, part in self.penalized.items():
            for page in self.plain.get(name, []):
                page.share = int(page.share * part)
                page.may_borrow = 0
        self.periods = {page.uuid: page.period for schedules in self.plain.values() for page in schedules}
        self.on_card: dict[str, list[Tenant]] = {}
        for tenant in self.by_name.values():
            for card in tenant.cards:
                self.on_card.setdefault(card, []).append(tenant)
        self._uses: dict[tuple[str, str], _Use] = {}
        self._loans: dict[str, tuple[int, int]] = {}  # (rate, end)

    @property
    def borrowers(self) -> list[Tenant]:
        """The tenants to which time may be lent."""
        return [tenant for tenant in self.by_name.values() if self._may_borrow(tenant)]

    def _may_borrow(self, tenant: Tenant) -> bool:
        return tenant.is_soft and tenant.name not in self.penalized

    def lent(self, now: int) -> dict[str, int]:
        """The rates that are lent at the moment, by tenant."""
        return {name: rate for name, (rate, until) in self._loans.items() if until > now}

    def is_awake(self, now: int) -> bool:
        """Whether a tenant has borrowed time, or may want to at any moment."""
        return bool(self._loans) or any(self._is_active(tenant, now) for tenant in self.borrowers)

    def take_over(self, before: LendingPolicy) -> None:
        """Keep the observed use of the same tenants. Nothing is lent: a change of the tenants ends all loans."""
        self._uses = {key: use for key, use in before._uses.items() if key[0] in self.by_name}

    def decide(self, now: int, seen: Mapping[tuple[str, str], Observation]) -> dict[str, list[CoreSchedule]]:
        """The schedules to write now, by tenant. `seen` by (tenant, card); a tenant that is missing wants nothing.

        The returned schedules count as written. If the caller did not write them, it must call `forget`.
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
        """Drop all loans: it is not known whether the last schedules were written, and loans expire by themselves."""
        self._loans.clear()

    # What tenants do

    def _follow(self, now: int, seen: Mapping[tuple[str, str], Observation]) -> None:
        for key, observation in seen.items():
            use = self._uses.get(key)
            if use is None:
                use = self._uses[key] = _Use(now, observation)
            else:
                use.follow(now, observation)
            if key[0] in self.by_name and (not observation.is_known or use.percent() >= self._need_threshold(*key)):
                use.needs_until = now + HOLD
        self._uses = {key: use for key, use in self._uses.items() if key in seen}

    def _need_threshold(self, name: str, card: str) -> float:
        """Percent of use from which a tenant needs its share: half of what it gets when all tenants want theirs."""
        return min(self.by_name[name].share, 100 / max(len(self.on_card.get(card, ())), 1)) / 2

    def _of(self, tenant: Tenant) -> list[_Use]:
        return [use for card in tenant.cards if (use := self._uses.get((tenant.name, card))) is not None]

    def _is_active(self, tenant: Tenant, now: int) -> bool:
        return any(use.wants(now) for use in self._of(tenant))

    # What is lent

    def _rates(self, now: int) -> dict[str, int]:
        """The rate of each borrower: its part of a card's idle time, on the card where that part is smallest."""
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
        """Percent of the card that is lost to changes between so many active containers."""
        change = self.changes.get(card, CHANGE_NS)
        return -(-active * change * 100 // self.periods[card]) if active > 1 else 0

    def _kept(self, tenant: Tenant, now: int) -> int:
        """Percent that is not lent to others: the share, or somewhat more than its use if a tenant uses little."""
        uses = self._of(tenant)
        if tenant.name in self.penalized or any(now < use.needs_until for use in uses):
            return tenant.share
        used = max((use.percent() for use in uses), default=0.0)
        return min(_stepped(max(OWNERS_ROOM * used, tenant.share / LEAST_SHARE_KEPT)), tenant.share)

    def _wish(self, tenant: Tenant, kept: int, now: int) -> int:
        """Percent that the tenant could use beyond what it keeps."""
        if not self._may_borrow(tenant):
            return 0
        uses = self._of(tenant)
        if any(use.wants_more(now) for use in uses):
            return tenant.core_limit - kept
        used = max((use.percent() for use in uses), default=0.0)
        return max(0, min(tenant.core_limit, _stepped(BORROWERS_ROOM * used)) - kept)


def shared_out(idle: int, wishes: list[tuple[Tenant, int]]) -> dict[str, int]:
    """Divide `idle` percent of a card among the tenants by their wishes, in proportion to their shares.

    High priority (0) comes first. Of the idle time, low priority gets LOW_PART percent if it wishes for that much.
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
    """Divide `amount` in proportion to the shares. No tenant gets more than its wish; the others get the rest."""
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

"""Who may work on which card when: the table of phases of all containers with a share, as a pure function.

Belongs here: the cutting of a card's time. A single card is cut as cardpage.schedule does it: one phase after the
other in the order of the containers, lengths in proportion to the shares, what a change of containers costs on top.
What nobody has of a card is spread over its phases in the same proportion (the bucket holds each container to its
share), and shares that add up to more than the card shrink alike.

A container on several cards has one phase, the same on all of them: kernels that wait for each other across cards would
otherwise spin for the most part of it. Cards that such containers join are cut together, with one period. Where that
cannot be done, because the neighbours on those cards differ too much, those cards have no phases: each container is
then held to its share by its own bucket, and their work mixes as the hardware pleases.
"""

from __future__ import annotations

from vgpu.config.cardpage import CHANGE_NS, Page, period_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Key = tuple[str, str]  #: a tenant's name and a card's uuid
    Table = dict[Key, "Phase"]


class Tenant:
    """A container with `share` percent of each of `cards`."""

    __slots__ = ("cards", "name", "share")

    def __init__(self, name: str, cards: tuple[str, ...], share: int) -> None:
        self.name = name
        self.cards = cards
        self.share = max(share, 1)  # nobody starves for good


class Phase:
    """ns: from `start` on in every `period`, for `length`. `share`: millionths of the card's time, for the bucket."""

    __slots__ = ("length", "period", "share", "start")

    def __init__(self, period: int, start: int, length: int, share: int) -> None:
        self.period = period
        self.start = start
        self.length = length
        self.share = share

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Phase) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[int, int, int, int]:
        return self.period, self.start, self.length, self.share


def tenants_by_card(tenants: Iterable[Tenant]) -> dict[str, list[Tenant]]:
    """In the order of the tenants."""
    found: dict[str, list[Tenant]] = {}
    for tenant in tenants:
        for card in tenant.cards:
            found.setdefault(card, []).append(tenant)
    return found


def pages(tenants: list[Tenant], table: Table) -> dict[str, list[Page]]:
    """Each tenant's pages; nothing is lent."""
    by_card = tenants_by_card(tenants)
    made = {tenant.name: [Page(card, tenants=len(by_card[card])) for card in tenant.cards] for tenant in tenants}
    for name, found in made.items():
        for page in found:
            phase = table.get((name, page.uuid))
            if phase is not None:
                page.period, page.phase_start, page.phase_length, page.share = phase.key()
    return made


def joined(tenants: Iterable[Tenant]) -> list[list[Tenant]]:
    """The tenants in groups that share cards with each other, directly or through others; in their order."""
    groups: list[tuple[set[str], list[Tenant]]] = []
    order: dict[str, int] = {}
    for number, tenant in enumerate(tenants):
        order[tenant.name] = number
        mine = [group for group in groups if not group[0].isdisjoint(tenant.cards)]
        cards = set(tenant.cards).union(*(group[0] for group in mine))
        members = [member for group in mine for member in group[1]]
        groups = [group for group in groups if group not in mine]
        groups.append((cards, sorted([*members, tenant], key=lambda member: order[member.name])))
    return [members for _, members in groups]


def period(group: list[Tenant], longest: Mapping[str, int]) -> int:
    """The period for cards that are cut together. `longest`: ns of a card's longest kernels; tenants' word, bounded."""
    return max(
        period_of([tenant.share for tenant in members], longest.get(card, 0))
        for card, members in tenants_by_card(group).items()
    )


def cut(
    tenants: Iterable[Tenant], longest: Mapping[str, int] | None = None, periods: Mapping[str, int] | None = None
) -> Table:
    """The phases by (tenant, card). Without one is who is alone on all his cards, and who cannot have one.

    `periods` fixes the period of cards: a second table for the same cards must have that of the first.
    """
    table: Table = {}
    for group in joined(tenants):
        if len(group) == 1:
            continue
        told = (periods or {}).get(group[0].cards[0], 0)
        for tenant, phase in _cut(group, told or period(group, longest or {})):
            table.update({(tenant.name, card): phase for card in tenant.cards})
    return table


def _cut(group: list[Tenant], length: int) -> list[tuple[Tenant, Phase]]:
    """The group's phases in a period of that length, [] if no way is found: with what nobody has spread, then bare."""
    first = sorted(group, key=lambda tenant: len(tenant.cards) == 1)
    largest = sorted(group, key=lambda tenant: (-len(tenant.cards), -tenant.share))
    for floor in (0, 100):
        lengths = _lengths(group, length, floor)
        for order in (first, largest):
            starts = _fitted(order, lengths, length)
            if starts:
                shares = _shares(group, length)
                names = [tenant.name for tenant in group]
                return [
                    (tenant, Phase(length, starts[name], lengths[name], shares[name]))
                    for tenant, name in zip(group, names)
                ]
    return []


def _lengths(group: list[Tenant], whole: int, floor: int) -> dict[str, int]:
    """Each tenant's length, what its fullest card allows. Shares are parts of their sum, of `floor` at least."""
    found: dict[str, int] = {}
    for members in tenants_by_card(group).values():
        total = max(sum(tenant.share for tenant in members), floor)
        useful = whole - CHANGE_NS * len(members)
        for tenant in members:
            length = CHANGE_NS + useful * tenant.share // total
            found[tenant.name] = min(length, found.get(tenant.name, length))
    return found


def _shares(group: list[Tenant], whole: int) -> dict[str, int]:
    """Each tenant's share in millionths: what changing containers costs is taken from all alike where it has to be."""
    found: dict[str, int] = {}
    for members in tenants_by_card(group).values():
        total = sum(tenant.share for tenant in members)
        useful = (whole - CHANGE_NS * len(members)) * 1_000_000 // whole
        for tenant in members:
            share = min(useful * tenant.share // total, tenant.share * 10_000)
            found[tenant.name] = min(share, found.get(tenant.name, share))
    return found


def _fitted(order: list[Tenant], lengths: dict[str, int], whole: int) -> dict[str, int]:
    """The starts when each in turn takes the first place that is free on all its cards; {} when one finds none."""
    starts: dict[str, int] = {}
    taken: dict[str, list[tuple[int, int]]] = {}
    for tenant in order:
        length = lengths[tenant.name]
        busy = [span for card in tenant.cards for span in taken.get(card, [])]
        places = sorted({0, *(end for _, end in busy)})
        free = [at for at in places if at + length <= whole and _is_free(at, at + length, busy)]
        if not free:
            return {}
        starts[tenant.name] = free[0]
        for card in tenant.cards:
            taken.setdefault(card, []).append((free[0], free[0] + length))
    return starts


def _is_free(begin: int, end: int, busy: list[tuple[int, int]]) -> bool:
    return all(end <= start or stop <= begin for start, stop in busy)

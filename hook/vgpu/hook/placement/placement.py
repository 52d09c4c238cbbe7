"""Placement: request + cards + commitments + policy -> cards, or the reason why not, card by card.

Belongs here: the pure function `place` and its rules. Not here: the commitments, which are the ledger's, and the cards,
which are the inventory's. The plugin and the extender call the same function. It reads no file, clock or random number,
its result does not depend on the order of the input, and it never changes the input.

A share goes to the fitting card that is fullest (binpack) or emptiest (spread), `gpus` times on different cards.
Whole cards are the set with, in this order:

1. the best links among themselves: the sum of NVLink widths, then the number of pairs on one PCIe switch or better
   (NV, PIX, PXB), then of pairs on one NUMA node or better (PHB, NODE; without a known link: the same NUMA node);
2. the fewest groups split. A group is two or more cards, each linked to each other by NVLink, or by NVLink or a common
   switch; where such groups overlap, the larger counts, then the better linked, then the one of lower indexes. A group
   is split when all its cards were free and some of them, not all, are taken. Taking a lone card, or one of a group
   that is split already, costs nothing;
3. the smallest of such groups, then the best links left among the node's free cards;
4. the lowest indexes.

A request for one whole card gets a MIG instance where no whole card fits, or where its wishes ask for one.

With `total`, sets whose cards have fewer bytes together are left out.
Up to MAX_SETS sets are compared one by one (16 of 32 cards would be 600 million). Beyond that, two sets are grown from
every card by adding the best-linked card again and again, and the best of these is taken. It is good, but not proven
to be the best.
"""

from __future__ import annotations

from math import comb

from vgpu.config.errors import VgpuError, shown
from vgpu.config.inventory import Card
from vgpu.config.request import WHOLE_CARD, Request, Wishes

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time: it costs 2 ms in the hook's process
    from collections.abc import Iterable, Iterator

POLICIES = ("binpack", "spread")
MAX_SETS = 20_000
MAX_REASONS = 2000  #: characters of the reasons in a refusal, some 16 cards
MAX_HOLDERS = 3  #: holders named per card

# A link's worth, so that sums compare as (NVLink widths, pairs at least on a switch, pairs at least on a NUMA node).
_NUMA = 1
_SWITCH = (1 << 20) + _NUMA
_NVLINK = 1 << 40
_PCIE = {"PIX": _SWITCH, "PXB": _SWITCH, "PHB": _NUMA, "NODE": _NUMA, "SYS": 0}


class NoFit(VgpuError):
    """The request gets no cards now. The one line has the reason for each card, `reasons` each without its card."""

    reasons: tuple[str, ...] = ()


class Commitment:
    """What one card owes: sums of `cores` (percent) and `memory` (bytes).

    The holders are for messages; `amounts` has the cores and memory of each of them, where they are known.
    """

    __slots__ = ("amounts", "cores", "exclusive", "holders", "memory")

    def __init__(
        self,
        cores: int = 0,
        memory: int = 0,
        exclusive: bool = False,
        holders: tuple[str, ...] | list[str] = (),
        amounts: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.cores = cores
        self.memory = memory
        self.exclusive = exclusive
        self.holders = holders
        self.amounts = amounts

    @property
    def empty(self) -> bool:
        return not (self.cores or self.memory or self.exclusive or self.holders)


class Policy:
    """The node's policy: binpack or spread, and how much of a card its shares may add up to.

    A scaling above 1 oversubscribes the card, but one container never gets more memory than the card has, because no
    driver could provide it. A scaling below 1 leaves a part to the host. Whole cards are never scaled.
    """

    __slots__ = ("cores_scaling", "memory_scaling", "name")

    def __init__(self, name: str = "binpack", cores_scaling: float = 1.0, memory_scaling: float = 1.0) -> None:
        if name not in POLICIES:
            raise VgpuError("placement policy", expected=" or ".join(POLICIES), found=name)
        if not (0 < cores_scaling < 1e6 and 0 < memory_scaling < 1e6):
            found = f"cores {cores_scaling}, memory {memory_scaling}"
            raise VgpuError("scaling factors", expected="numbers above 0", found=found)
        self.name = name
        self.cores_scaling = cores_scaling
        self.memory_scaling = memory_scaling

    def cores(self) -> int:
        """Percent that the shares of one card may add up to; 1.15 is 115, despite the rounding of binary floats."""
        return int(WHOLE_CARD * self.cores_scaling + 1e-6)

    def memory(self, card: Card) -> int:
        """Bytes that the shares of `card` may add up to."""
        return int(card.memory * self.memory_scaling)


def place(
    request: Request, cards: list[Card], commitments: dict[str, Commitment], policy: Policy, by_kubelet: bool = False,
    ill: dict[str, str] | None = None,
) -> list[Card]:  # fmt: skip
    """`request.gpus` different cards in the order of their indexes; NoFit with the reason when there are none.

    `request.fixed` is the scheduler's choice: those cards or none, without regard to the wishes and to `ill`, the cards
    that no new container gets (uuid -> why). `request.preferred` is taken when it names exactly `gpus` cards that fit,
    wishes included. Commitments of unknown cards are ignored; a card without a commitment is free. A refusal of a
    container that kubelet admitted (`by_kubelet`) says so when only all cards together have the room: kubelet counts
    them together.
    """
    _check(request)
    node = sorted(cards, key=lambda card: (card.index, card.uuid))
    if request.gpus > len(node):
        raise NoFit(f"no cards for {_asked(request)}: node has {_count(len(node), 'card')}")
    held = [commitments.get(card.uuid) or _FREE for card in node]
    if request.fixed:
        return _fixed(request, node, held, policy)
    reasons = refusals(request, node, commitments, policy, ill or {})
    fitting = [at for at, reason in enumerate(reasons) if not reason]
    if request.exclusive:  # a whole card has all that an instance has, and more
        fitting = [at for at in fitting if not node[at].parent] or fitting
    pools = _preferred(request, node, fitting) or _pools(request, node, fitting)
    if not pools:
        fragments = _fragments(request, node, held, policy, ill or {}) if by_kubelet else ""
        raise _no_fit(request, node, fitting, reasons, fragments)
    choose = _whole_cards if request.exclusive else _shares
    return [node[at] for at in choose(request, node, held, pools, policy)]


def refusals(
    request: Request, cards: list[Card], commitments: dict[str, Commitment], policy: Policy, ill: dict[str, str]
) -> list[str]:
    """For each of `cards` the reason why it cannot be one of the request's, "" where it can."""
    return [
        _wish_refusal(card, request.wishes)
        or (f"unhealthy: {shown(ill[card.uuid])}" if card.uuid in ill else "")
        or _refusal(card, request, commitments.get(card.uuid) or _FREE, policy)
        for card in cards
    ]


_FREE = Commitment()


def _check(request: Request) -> None:
    if request.gpus < 1 or not 0 <= request.cores <= WHOLE_CARD or min(request.memory, request.total) < 0:
        expected = f"1 or more cards, 0 to {WHOLE_CARD} cores of each, and memory"
        found = f"{request.gpus} cards, {request.cores} cores, {request.memory} bytes"
        raise NoFit("request", expected=expected, found=found)


def _fixed(request: Request, node: list[Card], held: list[Commitment], policy: Policy) -> list[Card]:
    what = f"scheduler's choice for {_asked(request)}"
    if len(set(request.fixed)) != len(request.fixed) or len(request.fixed) != request.gpus:
        raise NoFit(what, expected=_count(request.gpus, "different card"), found=", ".join(request.fixed))
    known = {card.uuid: at for at, card in enumerate(node)}
    reasons = []
    for uuid in request.fixed:
        if uuid not in known:
            reasons.append(f"{shown(uuid)}: not a card of this node")
            continue
        card = node[known[uuid]]
        reason = _refusal(card, request, held[known[uuid]], policy)
        if reason:
            reasons.append(f"{shown(card.label())}: {reason}")
    if reasons:
        raise NoFit(f"{what}: {_bounded(reasons)}")
    found = sorted(known[uuid] for uuid in request.fixed)
    if _memory_of(node, found) < request.total:
        raise NoFit(f"{what}: memory {_mib(_memory_of(node, found))} MiB in all")
    return [node[at] for at in found]


def _preferred(request: Request, node: list[Card], fitting: list[int]) -> list[list[int]]:
    """The preferred cards as the only pool; [] when there are too few of them or they do not fit."""
    if len(request.preferred) != request.gpus:
        return []
    return _pools(request, node, [at for at in fitting if node[at].uuid in request.preferred])


def _pools(request: Request, node: list[Card], fitting: list[int]) -> list[list[int]]:
    """The sets of positions to choose from: all that fit, or with the NUMA wish those of each NUMA node.

    Single-socket machines and many virtual ones report -1 for every card; that counts as one NUMA node. Where other
    cards have a number, a card with -1 is on no known node.
    """
    pools = {0: fitting}
    if request.wishes.numa and request.gpus > 1 and any(card.numa >= 0 for card in node):
        pools = {}
        for at in fitting:
            if node[at].numa >= 0:
                pools.setdefault(node[at].numa, []).append(at)
    return [pool for pool in pools.values() if len(pool) >= request.gpus and _has_memory(request, node, pool)]


def _has_memory(request: Request, node: list[Card], pool: list[int]) -> bool:
    """Whether the largest cards of `pool` have the memory that whole cards must have together."""
    return not request.total or _memory_of(node, _largest(node, pool, request.gpus)) >= request.total


def _largest(node: list[Card], pool: list[int], count: int) -> list[int]:
    return sorted(pool, key=lambda at: (-node[at].memory, at))[:count]


def _memory_of(node: list[Card], picks: Iterable[int]) -> int:
    return sum(node[at].memory for at in picks)


# The reason why a card does not fit a request, "" when it fits.


def _wish_refusal(card: Card, wishes: Wishes) -> str:
    name = card.name.lower()
    refused = [item for item in wishes.nouse_types if item.lower() in name]
    if wishes.use_types and not any(item.lower() in name for item in wishes.use_types):
        return f"excluded by use-gputype {shown(', '.join(wishes.use_types))}"
    if refused:
        return f"excluded by nouse-gputype {shown(refused[0])}"
    if wishes.profiles and card.profile not in wishes.profiles:
        return f"excluded by profile {shown(', '.join(wishes.profiles))}"
    if card.parent and card.profile in wishes.nouse_profiles:
        return f"excluded by nouse-profile {card.profile}"
    if wishes.use_uuids and card.uuid not in wishes.use_uuids:
        return "excluded by use-gpuuuid"
    return "excluded by nouse-gpuuuid" if card.uuid in wishes.nouse_uuids else ""


def _refusal(card: Card, request: Request, held: Commitment, policy: Policy) -> str:
    if card.parent and request.gpus > 1:
        return "a MIG instance, and a program uses one alone"
    if request.exclusive and _least(request) > card.memory:
        return f"memory {_mib(card.memory)} MiB in all"
    if held.exclusive:
        return f"held whole{_by(held)}"
    if request.exclusive:
        return "" if held.empty else f"shared{_by(held)}"
    parts = [_cores_refusal(request, held, policy), _memory_refusal(card, request, held, policy)]
    reason = ", ".join(part for part in parts if part)
    return f"{reason}, held{_by(held)}" if " free of " in reason and any(map(any, held.amounts)) else reason


def _least(request: Request) -> int:
    """The memory that each whole card must have; of a single card, all that was asked for."""
    return max(request.memory, request.total if request.gpus == 1 else 0)


def _cores_refusal(request: Request, held: Commitment, policy: Policy) -> str:
    capacity = policy.cores()
    if request.cores > capacity:
        return f"{capacity} cores in all for shares"
    free = capacity - held.cores
    return "" if request.cores <= free else f"{max(free, 0)} cores free of {capacity}"


def _memory_refusal(card: Card, request: Request, held: Commitment, policy: Policy) -> str:
    capacity, wanted = policy.memory(card), request.memory_of(card.uuid)
    if wanted > min(capacity, card.memory):
        scaled = "" if capacity >= card.memory else " for shares"
        return f"memory {_mib(min(capacity, card.memory))} MiB in all{scaled}"
    free = capacity - held.memory
    return "" if wanted <= free else f"memory {_mib(max(free, 0))} MiB free of {_mib(capacity)}"


def _fragments(request: Request, node: list[Card], held: list[Commitment], policy: Policy, ill: dict[str, str]) -> str:
    """What the cards have free together, where that would be enough; "" where it is not."""
    suited = [at for at, reason in enumerate(refusals(request, node, {}, policy, ill)) if not reason]
    usable = [at for at in suited if not held[at].exclusive]
    cores = sum(max(policy.cores() - held[at].cores, 0) for at in usable)
    memory = sum(max(policy.memory(node[at]) - held[at].memory, 0) for at in usable)
    enough = cores >= request.gpus * request.cores and memory >= request.gpus * request.memory
    if not enough or len(suited) < request.gpus:
        return ""
    room = f"{cores} cores and {_mib(memory)} MiB are free, but on several cards"
    return f" ({room}; a scheduler extender would have let the pod wait)"


def _no_fit(request: Request, node: list[Card], fitting: list[int], reasons: list[str], fragments: str) -> NoFit:
    head = f"no card fits {_asked(request)}{fragments}"
    fits = f"fits{', NUMA node {}' * request.wishes.numa}"
    if len(fitting) >= request.gpus and not _has_memory(request, node, fitting):
        head = f"no {_count(request.gpus, 'card')} have the requested memory together: {_asked(request)}"
        reasons = [reason or f"fits, memory {_mib(card.memory)} MiB" for card, reason in zip(node, reasons)]
    elif len(fitting) >= request.gpus:
        head = f"no NUMA node has the cards for {_asked(request)}"
    elif fitting:
        head = f"only {len(fitting)} of {len(node)} cards fit{'s' * (len(fitting) == 1)} {_asked(request)}{fragments}"
    told = [reason or fits.format(card.numa) for card, reason in zip(node, reasons)]
    refused = NoFit(f"{head}: {_bounded([f'{shown(card.label())}: {one}' for card, one in zip(node, told)])}")
    refused.reasons = tuple(told)
    return refused


def _bounded(lines: list[str]) -> str:
    given, length = 1, len(lines[0])
    while given < len(lines) and length + len(lines[given]) <= MAX_REASONS:
        length += len(lines[given])
        given += 1
    more = len(lines) - given
    return "; ".join(lines[:given]) + (f"; and {_count(more, 'more card')}" if more else "")


def _asked(request: Request) -> str:
    least = request.total or request.memory
    if not (request.exclusive and least):
        return request.describe()
    together = " together" if request.total and request.gpus > 1 else ""
    return f"{request.describe()} with {_mib(least)} MiB{together}"


def _by(held: Commitment) -> str:
    """The holders of a card: those with the most of it first, where their amounts are known."""
    more = len(held.holders) - MAX_HOLDERS
    if len(held.amounts) == len(held.holders):
        parts = sorted(zip(held.amounts, held.holders), key=lambda part: (-part[0][0], -part[0][1], part[1]))
        names = ", ".join(shown(name) + _amount(*amount) for amount, name in parts[:MAX_HOLDERS])
    else:
        names = shown(", ".join(sorted(held.holders)[:MAX_HOLDERS]))
    return (f" by {names}" if names else "") + (f" and {more} more" if more > 0 else "")


def _amount(cores: int, memory: int) -> str:
    return f" ({cores} cores, {_mib(memory)} MiB)" if memory or 0 < cores < WHOLE_CARD else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _mib(size: int) -> int:
    return size >> 20


# Shares: only the order of the cards matters.


def _shares(
    request: Request, node: list[Card], held: list[Commitment], pools: list[list[int]], policy: Policy
) -> list[int]:
    sign = -1 if (request.wishes.policy or policy.name) == "spread" else 1

    def rank(at: int) -> tuple[int, int, int]:
        cores, memory = policy.cores() - held[at].cores, policy.memory(node[at]) - held[at].memory
        return sign * cores, sign * memory, at

    return sorted(at for _, _, at in min(sorted(map(rank, pool))[: request.gpus] for pool in pools))


# Whole cards: positions in the node's list throughout, sets of them as bit masks.


def _whole_cards(
    request: Request, node: list[Card], held: list[Commitment], pools: list[list[int]], policy: Policy
) -> list[int]:
    size = request.gpus
    links = _Links(node, [at for at, commitment in enumerate(held) if commitment.empty], bool(request.total))
    best_worth = -1
    best: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    for pool in pools:
        sets = links.every_set(pool, size) if comb(len(pool), size) <= MAX_SETS else links.grown_sets(pool, size)
        for worth, picks in sets:
            if worth >= best_worth and _memory_of(node, picks) >= request.total:
                candidate = (links.damage(picks), picks)
                if worth > best_worth or candidate < best:
                    best_worth, best = worth, candidate
    # Grown sets consider links only. The largest cards of a pool have enough memory, else it would be no pool.
    return list(best[1]) or sorted(_largest(node, pools[0], size))


class _Links:
    """The worth of the links among a node's cards.

    `worth[a][b]` is that of one link, `left[a]` that of a's links to the free cards. `groups` are the masks of the
    groups whose cards are all free. `sizes` are the cards' memory where it counts, else 0.
    """

    __slots__ = ("groups", "left", "sizes", "worth")

    def __init__(self, node: list[Card], free: list[int], by_memory: bool = False) -> None:
        self.sizes = [card.memory * by_memory for card in node]
        self.worth = [[link_worth(a, b) if a is not b else 0 for b in node] for a in node]
        self.left = [sum(row[at] for at in free) for row in self.worth]
        mask = _mask(free)
        found = _groups(self.worth, _NVLINK) | _groups(self.worth, _SWITCH)
        self.groups = [group for group in found if group & mask == group]

    def damage(self, picks: tuple[int, ...]) -> tuple[int, int, int]:
        """The cost of taking `picks`: groups split, cards in them, worth of the picks' links to free cards.

        Of sets with equal links among themselves, the one with the least such worth leaves the best links.
        """
        taken = _mask(picks)
        split = [group for group in self.groups if 0 != group & taken != group]
        return len(split), sum(bin(group).count("1") for group in split), sum([self.left[at] for at in picks])

    def every_set(self, pool: list[int], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(worth of the links inside, positions) of every set of `size`, without sets that differ only in twins.

        Twins have equal links to all others and the same groups. Of two twins the lower index is taken first. For 8
        cards of 16 behind an NVLink switch that leaves one set of 12870.
        """
        elder = [self._elder(pool, at) for at in range(len(pool))]
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
        while stack:
            worth, start, picks = stack.pop()
            if len(picks) == size:
                yield worth, picks
                continue
            for at in range(start, len(pool) - size + len(picks) + 1):
                if elder[at] < 0 or elder[at] in picks:
                    row = self.worth[pool[at]]
                    stack.append((worth + sum([row[other] for other in picks]), at + 1, (*picks, pool[at])))

    def _elder(self, pool: list[int], at: int) -> int:
        """The nearest twin before `pool[at]`, or -1."""
        return next((other for other in reversed(pool[:at]) if self._twins(other, pool[at])), -1)

    def _twins(self, one: int, other: int) -> bool:
        pairs = enumerate(zip(self.worth[one], self.worth[other]))
        alike = self.sizes[one] == self.sizes[other]
        return (
            alike
            and all(a == b for at, (a, b) in pairs if at not in (one, other))
            and not any((group >> one ^ group >> other) & 1 for group in self.groups)
        )

    def grown_sets(self, pool: list[int], size: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """As every_set, but only two sets for each first card.

        Where several cards are linked equally well to the picked ones, one set takes the card with the least links to
        free cards, which leaves better links. The other takes the card with the most, which helps the next picks.
        """
        for seed in pool:
            for sign in (-1, 1):
                yield self._grow(pool, size, seed, sign)

    def _grow(self, pool: list[int], size: int, seed: int, sign: int) -> tuple[int, tuple[int, ...]]:
        picks, worth = [seed], 0
        gain = {at: self.worth[seed][at] for at in pool if at != seed}
        while len(picks) < size:
            best = max(gain, key=lambda at: (gain[at], sign * self.left[at], -at))
            worth += gain.pop(best)
            picks.append(best)
            for at in gain:
                gain[at] += self.worth[best][at]
        return worth, tuple(sorted(picks))


def nvlink_groups(cards: list[Card]) -> list[list[Card]]:
    """The disjoint groups of two or more cards, each of which has an NVLink to each other."""
    worth = [[link_worth(a, b) if a is not b else 0 for b in cards] for a in cards]
    return [[cards[at] for at in _bits(group)] for group in sorted(_groups(worth, _NVLINK))]


def link_worth(a: Card, b: Card) -> int:
    """The worth of the link between two cards. One side may not know the link."""
    known = [worth for worth in (_link(a.links.get(b.uuid)), _link(b.links.get(a.uuid))) if worth >= 0]
    return max(known) if known else _NUMA if a.numa == b.numa >= 0 else 0


def _link(name: str | None) -> int:
    """The worth of a link by its name, -1 for an unknown name."""
    if name is None:
        return -1
    width = name[2:]
    if name.startswith("NV") and width.isascii() and width.isdigit() and len(width) <= 4 and int(width):
        return int(width) * _NVLINK + _SWITCH
    return _PCIE.get(name, -1)


def _mask(positions: list[int] | tuple[int, ...]) -> int:
    mask = 0
    for at in positions:
        mask |= 1 << at
    return mask


def _groups(worth: list[list[int]], least: int) -> set[int]:
    """Masks of the disjoint groups that links of at least `least` form.

    Groups are cliques, not connected components: in a DGX-1 every card reaches every other by NVLink, but there are two
    groups of 4.
    """

    def rank(group: int) -> tuple[int, int, list[int]]:
        at = list(_bits(group))
        return -len(at), -sum(worth[a][b] for a in at for b in at), at

    groups = set()
    open_ = _cliques([_mask([at for at, value in enumerate(row) if value >= least]) for row in worth])
    while open_:
        best = min(open_, key=rank)
        groups.add(best)
        open_ = {rest for rest in (group & ~best for group in open_) if rest & (rest - 1)}
    return groups


def _cliques(near: list[int]) -> set[int]:
    """Masks of cliques of two and more cards, with all maximal ones; `near` are the masks of neighbours.

    Bron and Kerbosch with pivots, without the set that excludes cliques that are not maximal: the caller takes the
    largest.
    """
    found: set[int] = set()
    stack = [(0, (1 << len(near)) - 1)]
    while stack:
        group, open_ = stack.pop()
        if not open_:
            if group & (group - 1):
                found.add(group)
            continue
        pivot = max(_bits(open_), key=lambda at: bin(near[at] & open_).count("1"))
        for at in _bits(open_ & ~near[pivot]):
            stack.append((group | 1 << at, open_ & near[at]))
            open_ &= ~(1 << at)
    return found


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

"""Which ids kubelet should allocate: ids of one card for a share, ids of well-linked cards for several cards.

Belongs here: the answer to GetPreferredAllocation. Pure. A request that fits on one card gets ids of one card, the one
with the smallest rest, and a larger one gets ids of as few cards as possible. The answer is advice: the hook places the
container on the cards that are free then, and uses the ids' cards if those of all the container's grants agree. An
error would make kubelet fail the pod, so this module raises none and answers odd requests as well as it can.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpu.config import ranges
from vgpu.config.request import WHOLE_CARD, Request
from vgpu.hook.placement import placement
from vgpu.hook.placement.placement import Commitment, Policy
from vgpu.node.service.kubelet_resources import Resource, Slot

Numbers = dict[str, set[int]]  #: tag of a card -> numbers of its ids


def preferred(
    resource: Resource, available: Iterable[str], must: Iterable[str], size: int, policy: Policy, beside: str = ""
) -> list[str]:
    """`size` ids that include those of `must`; fewer if there are not so many.

    `beside` is the uuid of the card with the other half of the share, cores or memory. It comes before others that have
    all ids, because the hook follows the ids only where both halves lie on one card.
    """
    free, fixed = _numbers(resource, available), _numbers(resource, must)
    chosen: list[str] = []
    for tag, count in _shared_out(resource, free, fixed, size, policy, beside):
        inside = fixed.get(tag, set())
        numbers = sorted(inside) + _run(free.get(tag, set()) - inside, count - len(inside))
        chosen += [f"{tag}-{number}" for number in numbers]
    return chosen[: max(size, 0)]


def _numbers(resource: Resource, ids: Iterable[str]) -> Numbers:
    found: Numbers = {}
    for device_id in ids:
        place = resource.place_of(device_id)
        if place is not None:
            found.setdefault(place[0].tag, set()).add(place[1])
    return found


def _shared_out(
    resource: Resource, free: Numbers, fixed: Numbers, size: int, policy: Policy, beside: str
) -> list[tuple[str, int]]:
    """(tag, the number of its ids) for each card, the cards of fixed ids first."""
    order = _order(resource, free, fixed, size, policy)
    counts = {tag: len(numbers) for tag, numbers in fixed.items()}
    rests = {tag: _room(free, fixed, tag) - counts.get(tag, 0) for tag in order}
    left = size - sum(counts.values())
    each = _each(resource, size)
    other_half = next((slot.tag for slot in resource.slots if slot.card.uuid == beside), "")
    if each < size or _is_whole(resource, size):
        for tag in order:
            if tag in fixed or rests[tag] >= each:
                left -= _take(tag, min(each - counts.get(tag, 0), left), counts, rests)
    for tags in ([tag for tag in order if tag in fixed], order):
        while left > 0 and any(rests[tag] for tag in tags):
            left -= _take(_best_fit(tags, rests, left, policy, other_half), left, counts, rests)
    return sorted(counts.items(), key=lambda item: item[0] not in fixed)


def _take(tag: str, most: int, counts: dict[str, int], rests: dict[str, int]) -> int:
    """Move up to `most` ids of a card from `rests` to `counts`; returns how many."""
    more = max(min(most, rests[tag]), 0)
    if more:
        counts[tag] = counts.get(tag, 0) + more
        rests[tag] -= more
    return more


def _best_fit(tags: list[str], rests: dict[str, int], left: int, policy: Policy, other_half: str) -> str:
    """The card for `left` ids: one that has them all, and with the smallest rest, so that larger rests stay whole.

    By `spread` the one with the largest rest; before both the card with the share's other half. If no card has them
    all, the largest rest makes for the fewest cards.
    """
    fitting = [tag for tag in tags if rests[tag] >= left]
    if other_half in fitting:
        return other_half
    if fitting and policy.name != "spread":
        return min(fitting, key=lambda tag: rests[tag])
    return max(tags, key=lambda tag: rests[tag])


def _room(free: Numbers, fixed: Numbers, tag: str) -> int:
    """The number of a card's ids that the container may get."""
    return len(free.get(tag, set()) | fixed.get(tag, set()))


def _is_whole(resource: Resource, size: int) -> bool:
    """Whether `size` ids are whole cards."""
    return resource.kind == "cores" and size * resource.unit >= WHOLE_CARD


def _each(resource: Resource, size: int) -> int:
    """The number of ids of one card that a container of `size` ids should have."""
    if resource.kind in ("gpu", "mig"):
        return 1
    whole = WHOLE_CARD // resource.unit
    return whole if resource.kind == "cores" and size > whole else size


def _order(resource: Resource, free: Numbers, fixed: Numbers, size: int, policy: Policy) -> list[str]:
    """Tags of all cards that have free or fixed ids, the best first."""
    each = _each(resource, size)
    cards = -(-size // each) if each else 0
    whole = _is_whole(resource, size)
    linked: list[str] = []
    if whole or cards > 1:
        linked = _linked(resource, free, fixed, cards, each, whole)
    sign = -1 if policy.name == "spread" else 1

    def rank(slot: Slot) -> tuple[bool, bool, bool, int, int]:
        tag, room = slot.tag, _room(free, fixed, slot.tag)
        return tag not in fixed, tag not in linked, room < each, sign * room, slot.card.index

    return [slot.tag for slot in sorted(resource.slots, key=rank) if free.get(slot.tag) or fixed.get(slot.tag)]


def _linked(resource: Resource, free: Numbers, fixed: Numbers, cards: int, each: int, whole: bool) -> list[str]:
    """The best-linked `cards` of those with `each` free ids; for whole cards only those with all ids free."""
    slots = [
        slot
        for slot in resource.slots
        if slot.tag in fixed or len(free.get(slot.tag, ())) >= (slot.count if whole else each)
    ]
    must = [slot for slot in slots if slot.tag in fixed]
    others = [slot for slot in slots if slot.tag not in fixed]
    wanted = cards - len(must)
    if wanted < 1 or wanted > len(others):
        return [slot.tag for slot in slots]
    held = {slot.card.uuid: Commitment(1, 1) for slot in resource.slots if slot not in others}
    found = placement.place(Request(wanted, WHOLE_CARD, 0), [slot.card for slot in resource.slots], held, Policy())
    uuids = {card.uuid for card in found}
    return [slot.tag for slot in slots if slot in must or slot.card.uuid in uuids]


def _run(numbers: set[int], count: int) -> list[int]:
    """`count` of the numbers, from the shortest run that has so many, so that a grant names one range."""
    if count <= 0:
        return []
    runs = [range(low, high + 1) for low, high in ranges.of(numbers)]
    fitting = [run for run in runs if len(run) >= count]
    if fitting:
        return list(min(fitting, key=len)[:count])
    longest = [number for run in sorted(runs, key=len, reverse=True) for number in run]
    return sorted(longest[:count])

"""Which pods have to go from a node so that another pod finds its cards there.

Belongs here: the choice of victims on one node, as a pure function over a question "does it fit without these". The
scheduler's own victims stay victims: it needs their room for something else. Of the sets that make room, the smallest
counts, then the one whose pods have the lowest priorities, highest first.

Up to MAX_SETS sets are tried. On nodes with so many pods that these do not suffice, the sets of pods on a single card
are tried, up to as many, beside the set that remains when every pod that can stay does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from math import comb

from vgpu.plugin.scheduler.demand import PodSpec

MAX_SETS = 1000

Fits = Callable[[frozenset[str]], bool]
Pods = tuple[PodSpec, ...]


def victims(
    given: list[str], others: list[PodSpec], fits: Fits, together: Iterable[frozenset[str]] = ()
) -> list[str] | None:
    """`given` and the pods of `others` that have to go; None where all of them are not enough.

    `together` are the uids of the pods on each card.
    """
    if fits(frozenset(given)):
        return list(given)
    rest = sorted((pod for pod in others if pod.uid not in given), key=lambda pod: (pod.priority, pod.created, pod.uid))
    if not fits(frozenset([*given, *(pod.uid for pod in rest)])):
        return None
    found, tried = _smallest(given, rest, fits, MAX_SETS)
    if found is None:
        found = _of_many(given, rest, fits, together, tried)
    return [*given, *(pod.uid for pod in found)]


def _of_many(given: list[str], rest: list[PodSpec], fits: Fits, together: Iterable[frozenset[str]], tried: int) -> Pods:
    """The best of the sets on single cards and of the pods that cannot stay; no set up to the size `tried` fits."""
    best = _reprieved(given, rest, fits)
    left = MAX_SETS
    for uids in sorted(together, key=len):
        pods = [pod for pod in rest if pod.uid in uids]
        if tried < len(pods) and left > 0:
            found, _ = _smallest(given, pods, fits, left, tried + 1, len(best))
            left -= sum(comb(len(pods), size) for size in range(tried + 1, len(found or best) + 1))
            best = min(best, found, key=_cost) if found is not None else best
    return best


def _smallest(
    given: list[str], pods: list[PodSpec], fits: Fits, limit: int, first: int = 1, last: int = 1 << 30
) -> tuple[Pods | None, int]:
    """The cheapest set that makes room, of at most `limit` sets; and the greatest size of which all sets were tried."""
    for size in range(first, min(len(pods), last) + 1):
        limit -= comb(len(pods), size)
        if limit < 0:
            return None, size - 1
        for chosen in sorted(combinations(pods, size), key=_cost):
            if fits(frozenset([*given, *(pod.uid for pod in chosen)])):
                return chosen, size
    return None, len(pods)


def _cost(pods: Pods) -> tuple[int, list[int]]:
    return len(pods), sorted((pod.priority for pod in pods), reverse=True)


def _reprieved(given: list[str], rest: list[PodSpec], fits: Fits) -> Pods:
    """All pods but those that can stay, those of the highest priority first, as kube-scheduler does it."""
    gone = list(rest)
    for pod in reversed(rest):
        fewer = [one for one in gone if one is not pod]
        if fits(frozenset([*given, *(one.uid for one in fewer)])):
            gone = fewer
    return tuple(gone)

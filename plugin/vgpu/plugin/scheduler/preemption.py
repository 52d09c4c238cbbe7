"""Which pods have to go from a node so that another pod finds its cards there.

Belongs here: the choice of victims on one node, as a pure function over a question "does it fit without these". The
scheduler's own victims stay victims: it needs their room for something else. Of the sets that make room, the smallest
counts, then the one whose pods have the lowest priorities, highest first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb

from vgpu.plugin.scheduler.demand import PodSpec

MAX_SETS = 2000

Fits = Callable[[frozenset[str]], bool]


def victims(given: list[str], others: list[PodSpec], fits: Fits) -> list[str] | None:
    """`given` and the pods of `others` that have to go; None where all of them are not enough."""
    if fits(frozenset(given)):
        return list(given)
    rest = sorted((pod for pod in others if pod.uid not in given), key=lambda pod: (pod.priority, pod.created, pod.uid))
    if not fits(frozenset([*given, *(pod.uid for pod in rest)])):
        return None
    left = MAX_SETS
    for size in range(1, len(rest)):
        left -= comb(len(rest), size)
        if left < 0:
            return [*given, *_reprieved(given, rest, fits)]
        sets = sorted(combinations(rest, size), key=lambda pods: sorted((pod.priority for pod in pods), reverse=True))
        for pods in sets:
            if fits(frozenset([*given, *(pod.uid for pod in pods)])):
                return [*given, *(pod.uid for pod in pods)]
    return [*given, *(pod.uid for pod in rest)]


def _reprieved(given: list[str], rest: list[PodSpec], fits: Fits) -> list[str]:
    """All pods but those that can stay, those of the highest priority first, as kube-scheduler does it."""
    gone = [pod.uid for pod in rest]
    for pod in reversed(rest):
        fewer = [uid for uid in gone if uid != pod.uid]
        if fits(frozenset([*given, *fewer])):
            gone = fewer
    return gone

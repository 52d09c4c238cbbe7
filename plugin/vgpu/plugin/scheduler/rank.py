"""Which of the nodes that fit is the best: against fragments by default, or the emptiest first.

Belongs here: a node, what its cards owe and a decision -> a value to sort by, and scores for prioritize. Pure.

Against fragments, in this order: as few free cards as possible opened for shares; whole cards with the best links; the
least room left on the cards that are used; the fewest free cards left on the node; the fewest free cores and memory.
"""

from __future__ import annotations

from itertools import combinations

from vgpu.hook.placement import placement
from vgpu.plugin.scheduler.decide import Decision, State
from vgpu.plugin.scheduler.node_cards import FREE, NodeCards

MAX_SCORE = 10  #: kube-scheduler's MaxExtenderPriority

Rank = tuple[int, ...]


def rank(node: NodeCards, held: State, decision: Decision, policy: str) -> Rank:
    """The smallest is the best."""
    capacity = node.policy.cores()
    cores = memory = unopened = opened = left = 0
    for card, one, more in zip(node.cards, held, decision.used):
        size = node.policy.memory(card)
        if one.whole or more.whole:
            continue
        free_cores = max(capacity - one.cores - more.cores, 0)
        free_memory = max(size - one.memory - more.memory, 0)
        cores += free_cores
        memory += free_memory >> 20
        if more.cores or more.memory:
            opened += one == FREE
            left += 1000 * free_cores // max(capacity, 1) + 1000 * free_memory // max(size, 1)
        elif one == FREE:
            unopened += 1
    if policy == "spread":
        return -unopened, -cores, -memory
    return opened, -_links(node, decision), left, unopened, cores, memory


def _links(node: NodeCards, decision: Decision) -> int:
    """The worth of the links between the cards of each container with several."""
    return sum(
        placement.link_worth(node.cards[one], node.cards[other])
        for picks in decision.cards.values()
        if len(picks) > 1
        for one, other in combinations(picks, 2)
    )


def scores(ranks: dict[str, Rank]) -> dict[str, int]:
    """0 to MAX_SCORE for each node; nodes of the same rank get the same score."""
    order = {value: at for at, value in enumerate(sorted(set(ranks.values())))}
    last = max(len(order) - 1, 1)
    return {name: MAX_SCORE * (last - order[value]) // last for name, value in ranks.items()}

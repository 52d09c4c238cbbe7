"""Placement compared with brute force, and over long histories."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from topologies import (
    NODES,
    WHOLE,
    commit,
    cube_mesh,
    dgx,
    fits,
    indexes,
    linked,
    quads,
    random_node,
    random_request,
    share,
    switch_pairs,
    tier,
    whole,
)

from vgpu.hook.placement.placement import NoFit, Policy, place

# Invariants


def brute_force(cards, commitments, request):
    """The set that the documentation specifies, found by comparing all sets with plain sums over pairs."""
    free = [card for card in cards if card.uuid not in commitments]
    ranked = []
    for picks in combinations(sorted(free, key=lambda card: card.index), request.gpus):
        left = [card for card in free if card not in picks]
        split = [group for group in groups_of(cards)
                 if set(group) <= set(free) and 0 < len(set(group) & set(picks)) < len(group)]  # fmt: skip
        ranked.append((
            [-value for value in linked(picks)], len(split), sum(map(len, split)),
            [-value for value in linked(left)], indexes(picks),
        ))  # fmt: skip
    return min(ranked)[-1]


def groups_of(cards):
    """Sets of two or more cards, all linked by NVLink or a switch: first the largest, then the largest of the rest."""
    found = set()
    for level in (0, 1):
        rest = sorted(cards, key=lambda card: card.index)
        for size in range(len(rest), 1, -1):
            while groups := [
                group for group in combinations(rest, size) if all(tier(a, b)[level] for a, b in combinations(group, 2))
            ]:
                best = max(groups, key=linked)  # the first of equals: lowest indexes
                found.add(best)
                rest = [card for card in rest if card not in best]
    return found


def test_whole_cards_are_the_best_set_of_all():
    rng = random.Random(20240601)
    for _ in range(150):
        cards = random_node(rng, rng.randint(1, 7)) if rng.random() < 0.8 else rng.choice(list(NODES.values()))()
        taken = rng.sample(cards, rng.randint(0, len(cards) - 1))
        commitments = {card.uuid: WHOLE for card in taken}
        request = whole(rng.randint(1, len(cards) - len(taken)))
        assert indexes(place(request, cards, commitments, Policy())) == brute_force(cards, commitments, request)


def test_whole_cards_are_the_best_set_of_all_eight():
    rng = random.Random(8)
    for size in range(1, 9):
        cards = random_node(rng, 8)
        assert indexes(place(whole(size), cards, {}, Policy())) == brute_force(cards, {}, whole(size))


def room(cards, request, live, policy):
    """How many cards can serve the request at once."""
    able = [card for card in cards if fits(card, request, live, policy)]
    nodes = {card.numa for card in cards}
    if not request.wishes.numa or request.gpus == 1 or nodes == {-1}:
        return len(able)
    return max(sum(card.numa == numa for card in able) for numa in nodes - {-1})


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy("spread"), Policy("binpack", 1.5, 2.0), Policy("spread", 0.9, 0.6)],
    ids=["binpack", "spread", "oversubscribed", "reserved"],
)
def test_random_history(name, policy):
    """A request is served exactly when it fits, and no amount is ever committed twice."""
    rng = random.Random(f"{name} {policy.name}")
    cards, live = NODES[name](), []
    for _ in range(120):
        request = random_request(rng)
        commitments = commit(live)
        if room(cards, request, live, policy) < request.gpus:
            with pytest.raises(NoFit):
                place(request, cards, commitments, policy)
        else:
            got = place(request, cards, commitments, policy)
            assert len({card.uuid for card in got}) == request.gpus
            assert indexes(got) == sorted(indexes(got))
            assert all(fits(card, request, live, policy) for card in got)
            assert not request.wishes.numa or len({card.numa for card in got}) == 1
            live.append((request, [card.uuid for card in got]))
        while live and rng.random() < 0.4:
            live.pop(rng.randrange(len(live)))


def free_cards(cards, live):
    return sum(all(card.uuid not in uuids for _, uuids in live) for card in cards)


def test_binpack_leaves_at_least_as_many_cards_free_as_spread():
    """This holds after each arrival that both accept: spread takes a free card as long as there is one."""
    rng = random.Random(11)
    ahead = 0
    for _ in range(60):
        cards = rng.choice([dgx, quads, switch_pairs, cube_mesh])()
        live = {"binpack": [], "spread": []}
        for _ in range(12):
            request = share(rng.choice([5, 10, 20, 45, 60]), 64, rng.choice([1, 1, 1, 2]))
            if rng.random() < 0.15:
                request = whole(rng.choice([1, 2]))
            if any(room(cards, request, held_by, Policy(name)) < request.gpus for name, held_by in live.items()):
                break
            for name, held_by in live.items():
                got = place(request, cards, commit(held_by), Policy(name))
                held_by.append((request, [card.uuid for card in got]))
            free = {name: free_cards(cards, held_by) for name, held_by in live.items()}
            assert free["binpack"] >= free["spread"]
            ahead += free["binpack"] - free["spread"]
    assert ahead > 500, "binpack and spread hardly differ"


def test_binpack_serves_more_whole_cards_over_histories_with_departures():
    """A single history may end the other way. Over many histories binpack has to serve more."""
    free = {"binpack": 0, "spread": 0}
    for name in free:
        rng = random.Random(13)
        for _ in range(30):
            cards, live = quads(), []
            for _ in range(40):
                request = share(rng.choice([10, 20, 45]), 64)
                if len(live) > 6:
                    live.pop(rng.randrange(len(live)))
                got = place(request, cards, commit(live), Policy(name))
                live.append((request, [card.uuid for card in got]))
                free[name] += free_cards(cards, live)
    assert free["binpack"] > 2 * free["spread"]

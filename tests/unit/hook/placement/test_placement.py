"""Placement on synthetic nodes: tables of requests and the chosen cards, refusals, and bounds of the search."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from cards import card as a_card
from cards import instance
from topologies import (
    GIB,
    MIB,
    NODES,
    WHOLE,
    commit,
    cube_mesh,
    dgx,
    indexes,
    linked,
    make_node,
    mixed,
    quads,
    random_node,
    random_request,
    share,
    sockets,
    switch_pairs,
    t4,
    uuid,
    whole,
)

from vgpu.config.errors import VgpuError
from vgpu.config.request import Request, Wishes
from vgpu.hook.placement import placement
from vgpu.hook.placement.placement import Commitment, NoFit, Policy, place


def from_pairs(pairs, otherwise="SYS"):
    return lambda a, b: pairs.get((a, b), otherwise)


def together(gpus, memory_mib, **wishes):
    return Request(gpus, 100, 0, wishes=Wishes(**wishes), total=memory_mib * MIB)


def used(cores, memory_mib=1024):
    return Commitment(cores, memory_mib * MIB, False, ["c"])


def held(*indexes):
    return dict.fromkeys(indexes, WHOLE)


def chosen(cards, request, commitments=None, policy=None):
    by_uuid = {uuid(index): value for index, value in (commitments or {}).items()}
    return indexes(place(request, cards, by_uuid, policy or Policy()))


def refused(cards, request, commitments=None, policy=None):
    with pytest.raises(NoFit) as caught:
        chosen(cards, request, commitments, policy)
    return str(caught.value)


# Shares

SHARES = {
    "one card": (t4, {}, share(30, 1024), [0]),
    "the last share fills the card": (t4, {0: used(50, 7680)}, share(50, 7680), [0]),
    "empty alike: least memory, then index": (mixed, {}, share(10, 1024), [0]),
    "fewest free cores": (mixed, {1: used(20), 2: used(60)}, share(10, 1024), [2]),
    "fewest free cores that fit": (mixed, {1: used(20), 2: used(60)}, share(50, 1024), [1]),
    "cores before memory": (mixed, {0: used(20, 10000), 3: used(30, 1)}, share(10, 1024), [3]),
    "equal cores: least free memory": (mixed, {0: used(20, 1024), 1: used(20, 2048)}, share(10, 1024), [1]),
    "memory decides what fits": (mixed, {2: used(60, 22528)}, share(10, 1024), [0]),
    "only the big card": (mixed, {}, share(10, 30000), [3]),
    "never where one card is held whole": (mixed, {0: WHOLE, 1: WHOLE}, share(10, 1024), [2]),
    "two different cards": (mixed, {2: used(60)}, share(10, 1024, gpus=2), [0, 2]),
    "two cards, one nearly full": (mixed, {2: used(95)}, share(10, 1024, gpus=2), [0, 1]),
    "as many as there are": (mixed, {}, share(99, 1024, gpus=4), [0, 1, 2, 3]),
    "a share without cores": (mixed, {2: used(100)}, share(0, 1024), [2]),
    "spread: emptiest": (mixed, {0: used(10), 3: used(20)}, share(10, 1024, policy="spread"), [2]),
    "spread: most free memory": (mixed, {3: used(1)}, share(10, 1024, policy="spread"), [2]),
    "spread: then index": (dgx, {0: used(10)}, share(10, 1024, policy="spread"), [1]),
    "spread: two cards": (dgx, {0: used(10), 2: used(10)}, share(10, 1024, gpus=2, policy="spread"), [1, 3]),
}


@pytest.mark.parametrize("case", SHARES.values(), ids=SHARES.keys())
def test_share(case):
    cards, commitments, request, expected = case
    assert chosen(cards(), request, commitments) == expected


def test_the_nodes_policy_counts_unless_the_container_wishes_another():
    commitments = {0: used(10)}
    spread = Policy("spread")
    assert chosen(dgx(), share(10, 1024), commitments, spread) == [1]
    assert chosen(dgx(), share(10, 1024, policy="binpack"), commitments, spread) == [0]
    assert chosen(dgx(), share(10, 1024), commitments, Policy("binpack")) == [0]


# MIG instances: card 0 is whole, 1 and 2 are instances of another


def divided():
    parent = a_card(7, name="A100")
    return [a_card(0, name="A100", uuid=uuid(0)), *(
        instance(index, parent, gi=index, uuid=uuid(index), name=f"A100 MIG {profile}", memory=size * GIB)
        for index, profile, size in ((1, "1g.10gb+me", 10), (2, "3g.40gb", 40))
    )]  # fmt: skip


INSTANCES = {
    "a share": (divided, {}, share(10, 1024), [1]),
    "of a profile": (divided, {}, share(10, 1024, profiles=("3g.40gb",)), [2]),
    "a profile as resources name it": (divided, {}, share(10, 1024, profiles=("1g.10gb.me",)), [1]),
    "not of a profile": (divided, {}, share(10, 1024, nouse_profiles=("1g.10gb.me",)), [0]),
    "no instance": (divided, {}, share(10, 1024, nouse_types=("mig",)), [0]),
    "a whole card before an instance": (divided, {}, whole(), [0]),
    "an instance is a whole card": (divided, held(0), whole(), [1]),
    "a whole instance of a profile": (divided, {}, whole(profiles=("3g.40gb",)), [2]),
}


@pytest.mark.parametrize("case", INSTANCES.values(), ids=INSTANCES.keys())
def test_instances(case):
    test_share(case)


def test_a_container_has_no_instance_beside_another_card():
    assert "a MIG instance, and a program uses one alone" in refused(divided(), share(10, 1024, gpus=2))
    fixed = Request(2, 10, GIB, fixed=(uuid(0), uuid(1)))
    assert "a MIG instance, and a program uses one alone" in refused(divided(), fixed)
    assert "excluded by profile 7g.80gb" in refused(divided(), share(10, 1024, profiles=("7g.80gb",)))


# Whole cards

WHOLES = {
    "one of one": (t4, {}, whole(), [0]),
    "not a shared one": (mixed, {0: used(1), 1: Commitment(0, 1, False, [])}, whole(), [2]),
    "not where a share without amounts lives": (mixed, {0: Commitment(0, 0, False, ["c"])}, whole(), [1]),
    "memory is a minimum": (mixed, {}, whole(memory_mib=20000), [2]),
    "any of a whole switch fabric": (dgx, {}, whole(), [0]),
    "five of a fabric": (dgx, held(1, 3), whole(5), [0, 2, 4, 5, 6]),
    "one quad is broken already": (quads, held(0), whole(), [1]),
    "the more broken quad": (quads, held(0, 4, 5), whole(), [6]),
    "the lone card of a quad": (quads, held(0, 4, 5, 6), whole(), [7]),
    "a shared card breaks its quad too": (quads, {4: used(10)}, whole(), [5]),
    "two from the broken quad": (quads, held(0), whole(2), [1, 2]),
    "three are what is left of a quad": (quads, held(5), whole(3), [4, 6, 7]),
    "four are a quad": (quads, held(1), whole(4), [4, 5, 6, 7]),
    "two quads broken: links before remainder": (quads, held(0, 1, 4), whole(3), [5, 6, 7]),
    "DGX-1: stay in the quad that is broken": (cube_mesh, held(0), whole(), [1]),
    "DGX-1: also where the index says otherwise": (cube_mesh, held(4), whole(), [5]),
    "DGX-1: two cards by a double link": (cube_mesh, {}, whole(2), [0, 3]),
    "DGX-1: four cards": (cube_mesh, held(1), whole(4), [4, 5, 6, 7]),
    "pairs: the broken one": (switch_pairs, held(5), whole(), [4]),
    "pairs: two make a pair": (switch_pairs, held(0), whole(2), [2, 3]),
    "pairs: two on one socket before two sockets": (switch_pairs, held(0, 2, 4, 6), whole(2), [1, 3]),
    "pairs: two pairs of one socket": (switch_pairs, held(0), whole(4), [4, 5, 6, 7]),
    "pairs: the pair whose socket is broken": (switch_pairs, held(4), whole(2), [6, 7]),
    "unknown links: one socket": (sockets, held(0), whole(2), [1, 3]),
    "nothing known at all": (mixed, held(1), whole(2), [0, 2]),
}


@pytest.mark.parametrize("case", WHOLES.values(), ids=WHOLES.keys())
def test_whole_cards(case):
    cards, commitments, request, expected = case
    assert chosen(cards(), request, commitments) == expected


def test_fewer_groups_split_count_more_than_smaller_ones():
    """Cards 0 and 1 are an NVLink pair, and with card 2 three of a switch. Cards 3 to 8 are one group of six."""
    six = dict.fromkeys(combinations(range(3, 9), 2), "NV4")
    cards = make_node(9, from_pairs({(0, 1): "NV1", (0, 2): "PIX", (1, 2): "PIX", **six}))
    assert chosen(cards, whole(use_uuids=(uuid(0), uuid(3)))) == [3]
    assert chosen(cards, whole(use_uuids=(uuid(2), uuid(3)))) == [2]


def test_of_overlapping_groups_of_one_size_the_wider_counts():
    """Card 0 has single links to two pairs and is in neither. Cards 5 and 6 are a pair."""
    pairs = {(0, 1): "NV1", (0, 3): "NV1", (1, 2): "NV2", (3, 4): "NV2", (5, 6): "NV1"}
    assert chosen(make_node(7, from_pairs(pairs)), whole(use_uuids=(uuid(0), uuid(5)))) == [0]


@pytest.mark.parametrize(("one", "same"), [("PIX", "PXB"), ("PHB", "NODE"), ("SYS", "NVx"), ("SYS", "NV"),
                                           ("SYS", "NV0"), ("SYS", "?")])  # fmt: skip
def test_links_of_one_kind_are_worth_the_same(one, same):
    for first, second in ((one, same), (same, one)):
        assert chosen(make_node(4, from_pairs({(0, 1): first, (2, 3): second})), whole(2)) == [0, 1]


def test_a_link_that_one_side_knows_counts():
    for side in (2, 3):
        cards = make_node(4)
        cards[side].links[uuid(5 - side)] = "PIX"
        assert chosen(cards, whole(2)) == [2, 3]
        cards[5 - side].links[uuid(side)] = "SYS"
        assert chosen(cards, whole(2)) == [2, 3]


# Wishes, preference, the scheduler's choice

WISHES = {
    "type": (mixed, {}, share(10, 1024, use_types=("a10",)), [2]),
    "type in capitals": (mixed, {}, share(10, 1024, use_types=("TESLA V",)), [3]),
    "any of the types": (mixed, {2: used(1)}, share(10, 1024, use_types=("v100", "a10")), [2]),
    "not a type": (mixed, {}, share(10, 1024, nouse_types=("T4", "A10")), [3]),
    "type of whole cards": (mixed, {}, whole(2, nouse_types=("a10", "v100")), [0, 1]),
    "uuid": (mixed, {}, share(10, 1024, use_uuids=(uuid(3), "GPU-none")), [3]),
    "not a uuid": (mixed, {}, share(10, 1024, nouse_uuids=(uuid(0), uuid(1))), [2]),
    "uuids are exact": (mixed, {}, share(10, 1024, nouse_uuids=("GPU-0",)), [0]),
    "numa: a share on each of two": (sockets, {1: used(50)}, share(10, 1024, gpus=2, numa=True), [1, 3]),
    "numa: the node where both fit": (sockets, {1: used(95)}, share(10, 1024, gpus=2, numa=True), [0, 2]),
    "numa: fullest pair": (switch_pairs, {6: used(5), 0: used(1)}, share(9, 9, gpus=2, numa=True), [4, 6]),
    "numa: whole cards": (dgx, held(0, 1), whole(4, numa=True), [4, 5, 6, 7]),
    "numa: best links within": (switch_pairs, held(0, 2, 5), whole(2, numa=True), [6, 7]),
    "numa: one card is on one": (sockets, held(0, 2), whole(numa=True), [1]),
    "numa: unknown everywhere is one": (mixed, {}, whole(3, numa=True), [0, 1, 2]),
}


@pytest.mark.parametrize("case", WISHES.values(), ids=WISHES.keys())
def test_wish(case):
    cards, commitments, request, expected = case
    assert chosen(cards(), request, commitments) == expected


def test_numa_keeps_off_cards_whose_node_is_unknown_among_others():
    cards = make_node(4, numa=lambda a: (-1, -1, 3, 3)[a])
    assert chosen(cards, whole(2, numa=True)) == [2, 3]
    assert chosen(cards, share(10, 1024, gpus=2, numa=True)) == [2, 3]
    assert chosen(cards, share(10, 1024, numa=True)) == [0], "one card is on one node, whichever it is"
    assert "no NUMA node has the cards" in refused(cards, whole(3, numa=True))


PREFERENCES = {
    "taken": ((uuid(3), uuid(1)), {}, {}, [1, 3]),
    "too few": ((uuid(3),), {}, {}, [0, 2]),
    "too many": ((uuid(0), uuid(1), uuid(3)), {}, {}, [0, 2]),
    "twice the same": ((uuid(3), uuid(3)), {}, {}, [0, 2]),
    "unknown": ((uuid(3), "GPU-none"), {}, {}, [0, 2]),
    "one is full": ((uuid(3), uuid(1)), {1: used(95)}, {}, [0, 2]),
    "against a wish": ((uuid(3), uuid(1)), {}, {"nouse_uuids": (uuid(3),)}, [0, 2]),
    "two NUMA nodes": ((uuid(3), uuid(0)), {}, {"numa": True}, [0, 2]),
}


@pytest.mark.parametrize("case", PREFERENCES.values(), ids=PREFERENCES.keys())
def test_preference(case):
    preferred, commitments, wishes, expected = case
    cards = make_node(4, numa=lambda a: a % 2, memory=[GIB, 2 * GIB, GIB, 4 * GIB])
    request = Request(2, 10, MIB, wishes=Wishes(**wishes), preferred=preferred)
    assert chosen(cards, request, commitments) == expected


def test_the_schedulers_choice_is_taken_against_order_and_wishes():
    fixed = (uuid(3), uuid(0))
    wishes = Wishes(use_types=("h100",), nouse_uuids=(uuid(3),), numa=True, policy="spread")
    for cores in (10, 100):
        assert chosen(mixed(), Request(2, cores, MIB, wishes=wishes, fixed=fixed)) == [0, 3]
    preferred = (uuid(1), uuid(2))
    assert chosen(mixed(), Request(2, 10, MIB, fixed=fixed, preferred=preferred)) == [0, 3]


@pytest.mark.parametrize(
    ("fixed", "cores", "commitments", "reason"),
    [
        ((uuid(0), "GPU-none"), 10, {}, "GPU-none: not a card of this node"),
        ((uuid(0),), 10, {}, "expected 2 different cards, found GPU-00"),
        ((uuid(0), uuid(0)), 10, {}, "expected 2 different cards, found GPU-00, GPU-00"),
        ((uuid(0), uuid(1)), 10, {1: used(95)}, "card 1 (GPU-01, Tesla T4): 5 cores free of 100"),
        ((uuid(0), uuid(1)), 10, {1: WHOLE}, "card 1 (GPU-01, Tesla T4): held whole by whole"),
        ((uuid(0), uuid(1)), 100, {1: used(5)}, "card 1 (GPU-01, Tesla T4): shared by c"),
    ],
)
def test_the_schedulers_choice_is_refused(fixed, cores, commitments, reason):
    message = refused(mixed(), Request(2, cores, MIB, fixed=fixed), commitments)
    assert message.startswith("scheduler's choice for 2 cards, ")
    assert message.endswith(reason)


# Capacity and scaling


def test_scaling_above_one_oversubscribes():
    policy = Policy("binpack", 1.5, 2.0)
    commitments = {0: used(100, 15360)}
    assert chosen(t4(), share(50, 15360), commitments, policy) == [0]
    assert "50 cores free of 150" in refused(t4(), share(51, 15360), commitments, policy)
    assert "memory 15359 MiB free of 30720" in refused(t4(), share(50, 15360), {0: used(100, 15361)}, policy)


def test_one_container_never_gets_more_memory_than_the_card_has():
    assert chosen(t4(), share(10, 15360), {}, Policy("binpack", 1, 2.0)) == [0]
    message = refused(t4(), share(10, 15361), {}, Policy("binpack", 1, 2.0))
    assert message.endswith("card 0 (GPU-00, Tesla T4): memory 15360 MiB in all")


def test_scaling_below_one_keeps_a_part_from_shares_but_not_from_whole_cards():
    policy = Policy("binpack", 0.8, 0.5)
    assert chosen(t4(), share(80, 7680), {}, policy) == [0]
    message = refused(t4(), share(81, 7681), {}, policy)
    assert message.endswith("80 cores in all for shares, memory 7680 MiB in all for shares")
    assert chosen(t4(), whole(1, 15360), {}, policy) == [0]


def test_scaled_cores_are_what_was_written():
    assert [Policy("binpack", scaling).cores() for scaling in (1, 1.1, 1.15, 0.29, 2.5)] == [100, 110, 115, 29, 250]
    assert Policy().memory(dgx()[0]) == 80 * GIB


@pytest.mark.parametrize("arguments", [("pack",), ("binpack", 0), ("binpack", 1, -1), ("spread", float("nan")),
                                       ("spread", 1, float("inf"))])  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(VgpuError):
        Policy(*arguments)


def test_commitments_beyond_capacity_leave_nothing():
    """This happens after a scaling factor was reduced."""
    message = refused(t4(), share(10, 1024), {0: used(130, 20000)})
    assert message.endswith(": 0 cores free of 100, memory 0 MiB free of 15360")


# Refusals


def test_the_reason_is_given_per_card():
    commitments = {
        0: used(70), 1: used(10, 14336), 2: Commitment(0, 0, True, ["c1"]), 3: used(60, 32000),
    }  # fmt: skip
    message = refused(mixed(), share(50, 2048, nouse_types=("v100",)), commitments)
    assert message == (
        "no card fits 1 card, 50 cores and 2048 MiB: "
        "card 0 (GPU-00, Tesla T4): 30 cores free of 100; "
        "card 1 (GPU-01, Tesla T4): memory 1024 MiB free of 15360; "
        "card 2 (GPU-02, NVIDIA A10): held whole by c1; "
        "card 3 (GPU-03, Tesla V100-PCIE-32GB): excluded by nouse-gputype v100"
    )


REFUSALS = {
    "more cards than there are": (
        mixed, {}, whole(5), "no cards for 5 cards, whole: node has 4 cards"),
    "no card at all": (
        list, {}, share(1, 1), "no cards for 1 card, 1 cores and 1 MiB: node has 0 cards"),
    "too few": (
        lambda: make_node(2), {1: used(5)}, whole(2),
        "only 1 of 2 cards fits 2 cards, whole: "
        "card 0 (GPU-00, Tesla T4): fits; card 1 (GPU-01, Tesla T4): shared by c"),
    "whole card's memory": (
        t4, {}, whole(1, 16000),
        "no card fits 1 card, whole with 16000 MiB: card 0 (GPU-00, Tesla T4): memory 15360 MiB in all"),
    "one whole card's memory of all that was asked for": (
        lambda: make_node(2), {}, together(1, 16000),
        "no card fits 1 card, whole with 16000 MiB: card 0 (GPU-00, Tesla T4): memory 15360 MiB in all; "
        "card 1 (GPU-01, Tesla T4): memory 15360 MiB in all"),
    "whole cards' memory together": (
        lambda: make_node(2), {}, together(2, 30721),
        "no 2 cards have the requested memory together: 2 cards, whole with 30721 MiB together: "
        "card 0 (GPU-00, Tesla T4): fits, memory 15360 MiB; card 1 (GPU-01, Tesla T4): fits, memory 15360 MiB"),
    "share's memory over the card": (
        t4, {0: used(5)}, share(5, 16000),
        "no card fits 1 card, 5 cores and 16000 MiB: card 0 (GPU-00, Tesla T4): memory 15360 MiB in all"),
    "memory, by one byte": (
        t4, {0: used(5)}, Request(1, 5, 14336 * MIB + 1),
        "no card fits 1 card, 5 cores and 14336 MiB: card 0 (GPU-00, Tesla T4): memory 14336 MiB free of 15360"),
    "cores and memory": (
        t4, {0: used(60, 15000)}, share(50, 1024),
        "no card fits 1 card, 50 cores and 1024 MiB: card 0 (GPU-00, Tesla T4): 40 cores free of 100, "
        "memory 360 MiB free of 15360"),
    "use-gputype": (
        t4, {}, share(5, 5, use_types=("a10", "h100")),
        "no card fits 1 card, 5 cores and 5 MiB: card 0 (GPU-00, Tesla T4): excluded by use-gputype a10, h100"),
    "use-gpuuuid": (
        t4, {}, share(5, 5, use_uuids=("GPU-9",)),
        "no card fits 1 card, 5 cores and 5 MiB: card 0 (GPU-00, Tesla T4): excluded by use-gpuuuid"),
    "nouse-gpuuuid": (
        t4, {}, share(5, 5, nouse_uuids=("GPU-00",)),
        "no card fits 1 card, 5 cores and 5 MiB: card 0 (GPU-00, Tesla T4): excluded by nouse-gpuuuid"),
    "numa": (
        lambda: make_node(2, numa=lambda a: a), {}, whole(2, numa=True),
        "no NUMA node has the cards for 2 cards, whole: "
        "card 0 (GPU-00, Tesla T4): fits, NUMA node 0; card 1 (GPU-01, Tesla T4): fits, NUMA node 1"),
    "many holders": (
        t4, {0: Commitment(9, 9, False, ["e", "d", "c", "b", "a"])}, whole(),
        "no card fits 1 card, whole: card 0 (GPU-00, Tesla T4): shared by a, b, c and 2 more"),
    "nameless holder": (
        t4, {0: Commitment(exclusive=True)}, share(1, 1),
        "no card fits 1 card, 1 cores and 1 MiB: card 0 (GPU-00, Tesla T4): held whole"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS.keys())
def test_refusal(case):
    cards, commitments, request, message = case
    assert refused(cards(), request, commitments) == message


def test_a_refusal_is_one_bounded_line():
    cards = make_node(32, name="N\n" * 1000)
    holders = {index: Commitment(50, 0, False, ["x\ny" * 1000] * 50) for index in range(32)}
    for request in (whole(3), share(60, 1), share(1, 1, use_types=("\x00" * 5000,)),
                    Request(2, 1, 1, fixed=("\n" * 5000, "y" * 5000))):  # fmt: skip
        message = refused(cards, request, holders)
        assert message.isprintable()
        assert len(message) < 2500
    assert refused(cards, whole(3), holders).endswith(" more cards")
    sixteen = refused(dgx(16), whole(1), {index: used(5) for index in range(16)})
    assert sixteen.endswith("; card 15 (GPU-15, NVIDIA A100-SXM4-80GB): shared by c")


TOGETHER = {
    "all of equal cards": (lambda: make_node(4), {}, together(2, 30720), [0, 1]),
    "links decide where any two have enough": (
        lambda: make_node(4, from_pairs({(2, 3): "NV4"})), {}, together(2, 30720), [2, 3]),
    "memory comes before links": (mixed, {}, together(2, 50000), [2, 3]),
    "no more than needed": (mixed, {}, together(2, 30720), [0, 1]),
    "the first that have it": (mixed, {}, together(2, 38388), [0, 2]),
    "not of cards that are taken": (mixed, held(2), together(2, 40000), [0, 3]),
    "on one NUMA node": (
        lambda: make_node(4, numa=lambda a: a % 2, memory=[GIB, 2 * GIB, GIB, 2 * GIB]), {},
        together(2, 4096, numa=True), [1, 3]),
    "a twin of another size does not stand for it": (
        lambda: make_node(3, lambda a, b: "NV4", memory=[GIB, GIB, 2 * GIB]), {}, together(2, 3072), [0, 2]),
}  # fmt: skip


@pytest.mark.parametrize("case", TOGETHER.values(), ids=TOGETHER.keys())
def test_whole_cards_that_have_the_memory_together(case):
    cards, commitments, request, expected = case
    assert chosen(cards(), request, commitments) == expected


def test_grown_sets_without_the_memory_give_way_to_the_largest_cards(monkeypatch):
    monkeypatch.setattr(placement, "MAX_SETS", 0)
    assert chosen(mixed(), together(2, 55000)) == [2, 3]
    linked_small = make_node(4, from_pairs({(0, 1): "NV4"}), memory=[GIB, GIB, 2 * GIB, 2 * GIB])
    assert chosen(linked_small, together(2, 2048)) == [0, 1]
    assert chosen(linked_small, together(2, 4096)) == [2, 3]


def test_a_preference_or_choice_without_the_memory():
    request = Request(2, 100, 0, preferred=(uuid(0), uuid(1)), total=38388 * MIB)
    assert chosen(mixed(), request) == [0, 2]
    request = Request(2, 100, 0, fixed=(uuid(0), uuid(1)), total=38388 * MIB)
    assert refused(mixed(), request) == (
        "scheduler's choice for 2 cards, whole with 38388 MiB together: memory 30720 MiB in all"
    )
    request.total = 30720 * MIB
    assert chosen(mixed(), request) == [0, 1]


@pytest.mark.parametrize("amounts", [(0, 10, 1), (-1, 10, 1), (1, -1, 1), (1, 101, 1), (1, 150, 1), (1, 10, -1)])
def test_amounts_that_make_no_sense_are_refused(amounts):
    assert refused(mixed(), Request(*amounts)).startswith("request: expected 1 or more cards")


def test_beyond_the_bound_sets_are_grown(monkeypatch):
    """Growing must find the best set here, and is the method used beyond the bound."""
    monkeypatch.setattr(placement._Links, "every_set", None)
    block = make_node(32, lambda a, b: "NV4" if a // 8 == b // 8 else "SYS")
    assert chosen(block, whole(8), held(0, 9, 25)) == list(range(16, 24))
    assert chosen(block, whole(7), held(0, 9)) == list(range(1, 8))
    assert chosen(block, whole(16), held(0, 9)) == list(range(16, 32))
    assert chosen(dgx(20), whole(10)) == list(range(10))
    monkeypatch.setattr(placement, "MAX_SETS", 0)
    assert chosen(switch_pairs(), whole(5), held(1)) == [0, 4, 5, 6, 7], "the fifth from the broken pair"


def test_twins_stand_for_each_other():
    """This keeps large regular nodes cheap: 12870 sets of 8 cards of 16 become one."""
    pool = list(range(16))
    assert len(list(placement._Links(dgx(16), pool).every_set(pool, 8))) == 1
    halves = make_node(16, lambda a, b: "NV4" if a // 8 == b // 8 else "SYS")
    picks = [picks for _, picks in placement._Links(halves, pool).every_set(pool, 4)]
    assert sorted(picks) == [(0, 1, 2, 3), (0, 1, 2, 8), (0, 1, 8, 9), (0, 8, 9, 10), (8, 9, 10, 11)]


def test_grown_sets_come_near_the_best(monkeypatch):
    rng = random.Random(5)
    cases = [(random_node(rng, 8), rng.randint(2, 6)) for _ in range(60)]
    best = [linked(place(whole(size), cards, {}, Policy())) for cards, size in cases]
    monkeypatch.setattr(placement, "MAX_SETS", 0)
    grown = [linked(place(whole(size), cards, {}, Policy())) for cards, size in cases]
    assert all(a <= b for a, b in zip(grown, best))
    assert sum(a == b for a, b in zip(grown, best)) >= 45


def test_order_of_the_input_does_not_matter_and_the_input_stays_as_it_is():
    rng = random.Random(7)
    for _ in range(150):
        cards = random_node(rng, rng.randint(2, 8)) if rng.random() < 0.6 else rng.choice(list(NODES.values()))()
        live = [(share(rng.choice([10, 40]), 512), [card.uuid]) for card in cards if rng.random() < 0.4]
        commitments, request = commit(live), random_request(rng)
        before = snapshot(cards, commitments, request)
        answer = outcome(request, cards, commitments)
        assert snapshot(cards, commitments, request) == before
        shuffled = rng.sample(cards, len(cards))
        items = rng.sample(list(commitments.items()), len(commitments))
        for card in cards:
            card.links = dict(rng.sample(list(card.links.items()), len(card.links)))
        assert outcome(request, shuffled, dict(items)) == answer


def outcome(request, cards, commitments):
    try:
        return indexes(place(request, cards, commitments, Policy()))
    except NoFit as error:
        return str(error)


def snapshot(cards, commitments, request):
    return repr([[[(name, getattr(item, name)) for name in item.__slots__ if name not in ("device", "wishes")]
                  for item in items] for items in (cards, commitments.values(), [request, request.wishes])]) + repr(
                      [list(commitments)])  # fmt: skip


def test_single_whole_cards_come_and_go_without_breaking_both_quads():
    """Four containers of one card each are on one quad, so a job of four still finds the other."""
    for cards in (quads(), cube_mesh()):
        for seed in range(20):
            rng, live = random.Random(seed), []
            for _ in range(4):
                got = place(whole(), cards, commit(live), Policy())
                live.append((whole(), [card.uuid for card in got]))
            live.pop(rng.randrange(4))
            live.append((whole(), [place(whole(), cards, commit(live), Policy())[0].uuid]))
            assert indexes(place(whole(4), cards, commit(live), Policy())) == [4, 5, 6, 7]

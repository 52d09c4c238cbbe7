"""A pod's cards on one node: every refusal is true against brute force, no decision takes more than there is."""

from __future__ import annotations

from itertools import combinations, product

import cards as made
import pytest
from gpu_clusters import GIB, make_cards
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vgpu.config.dialects import registration
from vgpu.hook.placement.placement import NoFit, Policy
from vgpu.plugin.scheduler.decide import Decision, decide, requests_of, short
from vgpu.plugin.scheduler.demand import APP, INIT, SIDECAR, Demand, Part
from vgpu.plugin.scheduler.node_cards import FREE, Held, NodeCards, read_cards


def shared(name: str, cores: int, memory: int = 1, kind: str = APP, gpus: int = 1) -> Part:
    return Part(name, kind, gpus, cores, memory * GIB)


def whole(name: str, gpus: int = 1, kind: str = APP) -> Part:
    return Part(name, kind, gpus, 100)


def node_of(count: int, sizes: tuple[int, ...] = (), numa: tuple[int, ...] = (), **policy: float) -> NodeCards:
    cards = make_cards("n", count)
    for card, number in zip(cards, numa):
        card.numa = number
    for card, size in zip(cards, sizes):
        card.memory = size * GIB
    return NodeCards("n", cards, Policy("binpack", **policy))


def test_the_instances_of_a_node_come_with_its_annotation() -> None:
    offer = registration.Offer([made.card(0), made.instance(9)], {}, "550.54.15")
    node = read_cards("n", {registration.OWN: registration.own(offer)})
    assert [one.profile for one in node.cards] == ["", "1g.5gb"]
    of_profile = Demand((shared("a", 10),), (("profiles", ("1g.5gb",)),))
    assert decide(of_profile, node, (FREE, FREE)).cards == {"a": (1,)}
    with pytest.raises(NoFit, match="a MIG instance, and a program uses one alone"):
        decide(Demand((shared("a", 10, gpus=2),)), node, (FREE, FREE))


def phases(demand: Demand) -> list[list[Part]]:
    """The containers that run at the same time, phase by phase."""
    started: list[Part] = []
    found = []
    for part in demand.parts:
        if part.kind == INIT:
            found.append([*started, part])
        elif part.kind == SIDECAR:
            started.append(part)
    return [*found, [part for part in demand.parts if part.kind != INIT]]


def has_room(demand: Demand, node: NodeCards, held: tuple[Held, ...], cards: dict[str, tuple[int, ...]]) -> bool:
    """Whether every phase fits, computed from the containers alone."""
    requests = requests_of(demand, node)
    for phase in phases(demand):
        for at, card in enumerate(node.cards):
            here = [requests[part.name] for part in phase if at in cards[part.name]]
            wholes = sum(request.exclusive for request in here)
            if wholes and (len(here) > 1 or held[at] != FREE):
                return False
            if here and held[at].whole:
                return False
            if not wholes and (
                held[at].cores + sum(one.cores for one in here) > max(node.policy.cores(), held[at].cores)
                or held[at].memory + sum(one.memory for one in here) > max(node.policy.memory(card), held[at].memory)
            ):
                return False
    return True


def possible(demand: Demand, node: NodeCards, held: tuple[Held, ...]) -> bool:
    """Brute force over all sets of cards of all containers."""
    if any(part.gpus > len(node.cards) for part in demand.parts):
        return False
    sets = [
        [picks for picks in combinations(range(len(node.cards)), part.gpus) if are_near(demand, node, picks)]
        for part in demand.parts
    ]
    names = [part.name for part in demand.parts]
    return any(has_room(demand, node, held, dict(zip(names, chosen))) for chosen in product(*sets))


def are_near(demand: Demand, node: NodeCards, picks: tuple[int, ...]) -> bool:
    """Whether the cards are on one NUMA node, where that is wished and the node knows any."""
    if not demand.to_wishes().numa or len(picks) == 1 or all(card.numa < 0 for card in node.cards):
        return True
    return len({node.cards[at].numa for at in picks}) == 1 and node.cards[picks[0]].numa >= 0


numas = st.lists(st.sampled_from((-1, 0, 1)), min_size=3, max_size=3)
parts = st.lists(
    st.tuples(
        st.sampled_from((APP, APP, INIT, SIDECAR)), st.sampled_from((20, 30, 50, 60, 80, 100)),
        st.sampled_from((1, 4, 9)), st.sampled_from((1, 1, 1, 2)),
    ),
    min_size=1, max_size=4,
)  # fmt: skip
states = st.lists(
    st.sampled_from((FREE, FREE, Held(40, 2 * GIB), Held(70, 8 * GIB), Held(20, 15 * GIB), Held(100, 0, True))),
    min_size=1, max_size=3,
)  # fmt: skip


def demand_of(drawn: list[tuple[str, int, int, int]], numa: bool = False) -> Demand:
    order = sorted(drawn, key=lambda one: one[0] == APP)
    made = [
        whole(f"x{at}", gpus, kind) if cores == 100 else shared(f"x{at}", cores, memory, kind, gpus)
        for at, (kind, cores, memory, gpus) in enumerate(order)
    ]
    return Demand(tuple(made), (("numa", True),) if numa else ())


@settings(max_examples=300)
@given(parts, states, numas, st.booleans())
@example([(APP, 50, 9, 1), (SIDECAR, 20, 1, 1), (SIDECAR, 50, 9, 1), (INIT, 50, 1, 2)], [FREE, FREE], [0, 0, 0], False)
@example([(APP, 20, 1, 1), (APP, 20, 1, 2)], [FREE, FREE, FREE], [-1, 0, -1], True)
def test_it_fits_exactly_where_brute_force_finds_room(drawn, held, numbers, numa) -> None:
    demand, node = demand_of(drawn, numa), node_of(len(held), numa=tuple(numbers))
    try:
        decision: Decision | None = decide(demand, node, tuple(held))
    except NoFit:
        decision = None
    assert (decision is not None) == possible(demand, node, tuple(held))
    if decision is not None:
        assert has_room(demand, node, tuple(held), decision.cards)


@settings(max_examples=100)
@given(parts, states)
def test_what_a_pod_takes_is_the_peak_of_its_phases(drawn, held) -> None:
    demand, node = demand_of(drawn), node_of(len(held))
    try:
        decision = decide(demand, node, tuple(held))
    except NoFit:
        return
    requests = requests_of(demand, node)
    for at in range(len(held)):
        sums = [
            sum(100 if requests[part.name].exclusive else requests[part.name].cores
                for part in phase if at in decision.cards[part.name])
            for phase in phases(demand)
        ]  # fmt: skip
        assert decision.used[at].cores == max(sums)


def test_a_search_finds_what_the_largest_first_misses() -> None:
    """30 + 30 and 20 + 20 fill the rooms of 60 and 40; the largest first leaves 10 and 10, and one container."""
    demand = Demand((shared("a", 30), shared("b", 30), shared("c", 20), shared("d", 20)))
    assert decide(demand, node_of(2), (Held(40, GIB), Held(60, GIB))).cards == {
        "a": (0,),
        "b": (0,),
        "c": (1,),
        "d": (1,),
    }


def test_an_init_container_takes_the_cards_of_its_pod() -> None:
    """Here the fullest that fits would be the other one."""
    demand = Demand((shared("i", 30, kind=INIT), shared("a", 70)))
    decision = decide(demand, node_of(2), (Held(20, GIB), Held(50, GIB)))
    assert decision.cards == {"i": (0,), "a": (0,)}
    assert decision.used == (Held(70, GIB), FREE)


def test_vgpus_get_what_the_spec_names_else_their_part_of_each_card() -> None:
    node = node_of(2, (16, 32))
    part = requests_of(Demand((Part("a", APP, 2, 0, split=True),)), node)["a"]
    assert (part.cores, part.memories) == (50, {"GPU-n-0": 8 * GIB, "GPU-n-1": 16 * GIB})
    part = requests_of(Demand((Part("a", APP, 1, 30, 0, 0, 25, True),)), node)["a"]
    assert (part.cores, part.memories) == (30, {"GPU-n-0": 4 * GIB, "GPU-n-1": 8 * GIB})
    node.split = 1
    assert requests_of(Demand((Part("a", APP, 1, 0, split=True),)), node)["a"].exclusive


def test_a_short_refusal_names_no_card() -> None:
    with pytest.raises(NoFit) as refused:
        decide(Demand((shared("a", 50),)), node_of(1), (Held(60, GIB),))
    assert "GPU-n-0" in str(refused.value)
    assert short(refused.value) == "no card fits 1 card, 50 cores and 1024 MiB: 40 cores free of 100 (1 card)"
    typed = Demand((shared("a", 20),), (("use_types", ("A100",)),))
    with pytest.raises(NoFit) as refused:
        decide(typed, node_of(2), (FREE, FREE))
    assert short(refused.value).endswith("1024 MiB: excluded by use-gputype A100 (2 cards)")
    with pytest.raises(NoFit, match=r"^container a: no card fits"):
        decide(Demand((shared("a", 50), shared("b", 1))), node_of(1), (Held(60, GIB),))

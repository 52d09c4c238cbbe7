"""The preferred ids: one card for a share, linked cards for several, and never an error."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from plugin_inputs import GIB, make_cards, make_settings

from vgpu.config import ranges
from vgpu.config.inventory import Card
from vgpu.hook.placement.placement import Policy
from vgpu.node.service.kubelet_resources import Resource, advertised
from vgpu.plugin.kubelet.preferred import preferred

BINPACK, SPREAD = Policy("binpack"), Policy("spread")


def cores_of(cards: list[Card], **values) -> Resource:
    return advertised(make_settings(**values), cards)[0]


def taken(resource: Resource, free: dict[int, int], size: int, must=(), policy: Policy = BINPACK) -> dict[int, int]:
    """Card index -> number of ids chosen, where card i has its last free[i] ids available."""
    available = [
        f"{slot.tag}-{number}"
        for slot in resource.slots
        for number in range(slot.count - free.get(slot.card.index, slot.count), slot.count)
    ]
    chosen = preferred(resource, [*available, *must], must, size, policy)
    assert len(set(chosen)) == len(chosen)
    assert set(must) <= set(chosen)
    assert set(chosen) <= {*available, *must}
    counts: dict[int, int] = {}
    for device_id in chosen:
        place = resource.place_of(device_id)
        assert place is not None
        counts[place[0].card.index] = counts.get(place[0].card.index, 0) + 1
    return counts


@pytest.mark.parametrize(
    ("free", "size", "policy", "expected"),
    [
        ({}, 50, BINPACK, {0: 50}),
        ({0: 30}, 50, BINPACK, {1: 50}),
        ({0: 30}, 30, BINPACK, {0: 30}),
        ({0: 60, 1: 50, 2: 70}, 50, BINPACK, {1: 50}),
        ({0: 60, 1: 50, 2: 70, 3: 10}, 50, SPREAD, {2: 50}),
        ({0: 20, 1: 20, 2: 20, 3: 20}, 50, BINPACK, {0: 20, 1: 20, 2: 10}),  # the hook will find that it does not fit
        ({0: 99}, 100, BINPACK, {1: 100}),
        ({0: 99, 2: 5}, 200, BINPACK, {1: 100, 3: 100}),
        ({}, 400, BINPACK, {0: 100, 1: 100, 2: 100, 3: 100}),
        ({0: 0, 1: 0, 2: 0, 3: 0}, 50, BINPACK, {}),
        ({0: 0, 1: 0, 2: 0, 3: 7}, 50, BINPACK, {3: 7}),
    ],
)
def test_cores(free, size: int, policy: Policy, expected) -> None:
    assert taken(cores_of(make_cards(4)), free, size, policy=policy) == expected


def linked(pairs: list[tuple[int, int]], count: int = 4) -> list[Card]:
    cards = make_cards(count, link="SYS")
    for a, b in pairs:
        cards[a].links[cards[b].uuid] = cards[b].links[cards[a].uuid] = "NV4"
    return cards


def test_several_whole_cards_are_the_best_linked_ones() -> None:
    cores = cores_of(linked([(1, 3), (0, 2)]))
    assert taken(cores, {0: 50}, 200) == {1: 100, 3: 100}
    assert taken(cores, {1: 50}, 200) == {0: 100, 2: 100}


def test_one_whole_card_breaks_no_pair() -> None:
    assert taken(cores_of(linked([(0, 1)], 3)), {}, 100) == {2: 100}


def test_whole_cards_with_oversubscribed_cores_are_untouched_ones() -> None:
    cores = cores_of(make_cards(3), scaling__cores=2.0)
    assert taken(cores, {0: 150}, 200) == {1: 100, 2: 100}
    assert taken(cores, {0: 150}, 100) == {1: 100}
    assert taken(cores, {0: 150}, 60) == {0: 60}


def test_core_units_of_several_percent() -> None:
    cores = cores_of(linked([(1, 3)]), resources__core_unit=10)
    assert taken(cores, {}, 20) == {1: 10, 3: 10}
    assert taken(cores, {2: 5}, 5) == {2: 5}


def test_gpu_units_lie_on_different_cards() -> None:
    gpu = advertised(make_settings(resources__mode="gpu", resources__split_count=4), linked([(1, 3)]))[0]
    assert taken(gpu, {}, 2) == {1: 1, 3: 1}
    assert taken(gpu, {0: 0, 1: 2}, 1) == {1: 1}
    assert taken(gpu, {0: 2, 1: 1, 2: 3}, 1, policy=SPREAD) == {3: 1}
    assert taken(gpu, {}, 4) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert sum(taken(gpu, {}, 6).values()) == 6  # Allocate says why not


def test_must_include_is_included_and_its_card_comes_first() -> None:
    cores = cores_of(make_cards(4))
    slot = cores.slots[2]
    must = [f"{slot.tag}-{number}" for number in range(10)]
    assert taken(cores, {}, 50, must) == {2: 50}
    assert taken(cores, {}, 10, must) == {2: 10}
    assert taken(cores, {2: 5}, 50, must) == {2: 15, 0: 35}
    other = [*must, f"{cores.slots[0].tag}-1"]
    assert taken(cores, {}, 50, other)[2] + taken(cores, {}, 50, other)[0] == 50


def test_must_include_of_a_linked_pair() -> None:
    cores = cores_of(linked([(1, 3), (0, 2)]))
    must = [f"{cores.slots[3].tag}-{number}" for number in range(100)]
    found = taken(cores, {}, 200, must)
    assert found[3] == 100
    assert len(found) == 2


def test_ids_of_a_grant_are_few_ranges() -> None:
    """The shortest run that has enough; the longest ones when none has."""
    memory = advertised(make_settings(), make_cards(1, 100 * GIB))[1]
    tag = memory.slots[0].tag
    free = {*range(20), *range(50, 62), *range(100, 130)}
    available = [f"{tag}-{number}" for number in free]

    def numbers(size: int) -> str:
        chosen = preferred(memory, available, [], size, BINPACK)
        return ranges.text(ranges.of(int(one.partition("-")[2]) for one in chosen))

    assert numbers(10) == "50-59"
    assert numbers(15) == "0-14"
    assert numbers(25) == "100-124"
    assert numbers(40) == "0-9,100-129"


@pytest.mark.parametrize("size", [-5, 0, 10**6])
def test_odd_sizes(size: int) -> None:
    cores = cores_of(make_cards(2))
    assert sum(taken(cores, {}, size).values()) == max(min(size, 200), 0)


def test_unknown_ids_are_skipped() -> None:
    cores = cores_of(make_cards(1))
    assert preferred(cores, ["x", "", "ae5578c0-5000", "ae5578c0-7"], ["y-1"], 2, BINPACK) == ["ae5578c0-7"]
    assert preferred(cores, [], [], 2, BINPACK) == []


# Every small case: three cards of four ids each


def fewest(free: tuple[int, ...], must: tuple[int, ...], size: int) -> int:
    """The fewest cards that have `size` ids, those of `must` among them."""
    wanted = min(size, sum(free))
    return min(
        len(subset)
        for count in range(len(free) + 1)
        for subset in itertools.combinations(range(len(free)), count)
        if all(index in subset for index, of in enumerate(must) if of) and sum(free[i] for i in subset) >= wanted
    )


def small_cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """(free ids of each card, how many of them must be included, size of the request)."""
    for free in itertools.product((0, 1, 2, 4), repeat=3):
        for must in ((0, 0, 0), (1, 0, 0), (0, 2, 0), (1, 0, 1)):
            if all(of <= room for of, room in zip(must, free)):
                for size in range(max(sum(must), 1), 13):
                    yield free, must, size


@pytest.mark.parametrize("policy", [BINPACK, SPREAD], ids=lambda policy: policy.name)
def test_every_small_request_falls_on_the_fewest_cards(policy: Policy) -> None:
    memory = advertised(make_settings(), make_cards(3, GIB))[1]
    tags = [slot.tag for slot in memory.slots]
    cases = 0
    for free, must, size in small_cases():
        available = [f"{tag}-{number}" for tag, room in zip(tags, free) for number in range(4 - room, 4)]
        included = [f"{tag}-{3 - number}" for tag, of in zip(tags, must) for number in range(of)]
        chosen = preferred(memory, available, included, size, policy)
        counts = [sum(one.startswith(tag) for one in chosen) for tag in tags]
        assert len(set(chosen)) == len(chosen) == min(size, sum(free)), (free, must, size)
        assert set(included) <= set(chosen) <= set(available), (free, must, size)
        assert sum(map(bool, counts)) == fewest(free, must, size), (free, must, size, counts)
        if not any(must) and max(free) >= size:
            rests = [room for room in free if room >= size]
            assert free[counts.index(size)] == (min(rests) if policy is BINPACK else max(rests)), (free, size)
        cases += 1
    assert cases > 1000


def test_what_no_card_has_alone_takes_the_largest_rests_and_the_smallest_for_the_remainder() -> None:
    memory = advertised(make_settings(), make_cards(4))[1]
    assert taken(memory, {0: 10, 1: 40, 2: 6, 3: 8}, 46) == {1: 40, 2: 6}
    cores = cores_of(make_cards(4))
    assert taken(cores, {0: 60, 1: 10, 2: 100, 3: 50}, 200) == {2: 100, 0: 60, 3: 40}
    assert taken(cores, {0: 30, 1: 10, 2: 20, 3: 40}, 50) == {3: 40, 1: 10}


def test_must_include_that_another_fixed_card_can_complete() -> None:
    """Ids of an init container's two cards: no third card is touched, and the fuller one is used up."""
    memory = advertised(make_settings(), make_cards(3))[1]
    first, second = memory.slots[0].tag, memory.slots[1].tag
    must = [f"{first}-59", f"{second}-59"]
    assert taken(memory, {0: 5, 1: 30, 2: 60}, 20, must) == {0: 1, 1: 19}
    assert taken(memory, {0: 5, 1: 8, 2: 60}, 20, must) == {0: 5, 1: 8, 2: 7}


def test_the_other_half_of_a_share_follows_the_first_one() -> None:
    """Where the halves' ids lie on two cards, the hook cannot follow them."""
    memory = advertised(make_settings(), make_cards(3))[1]
    every = [device.id for device in memory.devices]
    tight = [one for one in every if not one.startswith(memory.slots[0].tag)] + [
        f"{memory.slots[0].tag}-{number}" for number in range(10)
    ]

    def card(available: list[str], size: int, beside: str, must: tuple[str, ...] = ()) -> set[str]:
        return {one.partition("-")[0] for one in preferred(memory, available, must, size, BINPACK, beside)}

    first, second, third = (slot.tag for slot in memory.slots)
    assert card(tight, 8, "") == {first}
    assert card(tight, 8, memory.slots[2].card.uuid) == {third}
    assert card(tight, 20, memory.slots[0].card.uuid) == {second}, "it has not so many ids"
    assert card(every, 8, memory.slots[2].card.uuid, (f"{second}-3",)) == {second}, (
        "the ids that must be included count"
    )
    assert card(tight, 8, "GPU-of-another-node") == {first}


def test_random_requests_get_what_there_is() -> None:
    chance = random.Random(11)
    for _ in range(300):
        mode = chance.choice(["vcuda", "gpu"])
        values = {"scaling__cores": chance.choice([0.5, 1.0, 2.0]), "resources__mode": mode}
        cards = make_cards(chance.randint(1, 6), link=chance.choice(["", "NV2", "PIX"]))
        resource = chance.choice(advertised(make_settings(**values), cards))
        every = [device.id for device in resource.devices]
        available = chance.sample(every, chance.randint(0, len(every)))
        size = chance.randint(0, len(every))
        must = chance.sample(available, min(len(available), chance.randint(0, 3), size))
        chosen = preferred(resource, available, must, size, chance.choice([BINPACK, SPREAD]))
        assert len(set(chosen)) == len(chosen) == min(size, len(available))
        assert set(must) <= set(chosen) <= set(available)

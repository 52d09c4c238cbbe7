"""Grants, the schedulers' choices and the pod's spec are joined to one request: which of them decides what."""

from __future__ import annotations

from typing import Any

import pytest
from cards import GIB, MIB, card, instance, uuid_of

from vgpu.config import grants
from vgpu.config.dialects.placements import Choice, Chosen
from vgpu.config.errors import VgpuError
from vgpu.config.grants import Grant, Holder
from vgpu.config.inventory import Card
from vgpu.config.request import Request, Wishes
from vgpu.config.settings import Settings
from vgpu.hook.ledger.commitments import OpenGrants, Totals
from vgpu.hook.ledger.pod_cgroups import PodCgroups
from vgpu.hook.placement import allocation
from vgpu.hook.placement.placement import Commitment, NoFit, Policy, place
from vgpu.hook.request.resolve_grants import ResolvedGrants, Terms, WantedGrants, resolve, terms_of

HAMI = "hami.io/vgpu-devices-allocated"
OWN = "vgpu.io/placement"


CARDS = [card(0), card(1), card(2, 8 * GIB)]


def grant(resource: str, amount: int, cores: int = 100, memory: int = 0, *cards: int) -> Grant:
    devices = {uuid_of(at): "0" for at in cards}
    return Grant(resource[0] * 32, resource, amount, 1.0, cores, memory, devices)


def gpu(count: int = 1) -> Grant:
    """Half of a 16 GiB card each, as device-split-count 2 makes it."""
    return grant("gpu", count, 50, 8 * GIB)


def choice(*cards: Chosen, key: str = HAMI) -> Choice:
    return Choice(key, cards)


def hami(index: int, mib: int = 0, cores: int = 0) -> Chosen:
    return Chosen(uuid_of(index), -1, cores, mib * MIB)


def resolved(
    mine: list[Grant],
    *choices: Choice,
    limits: dict[str, int] | None = None,
    terms: Terms | None = None,
    cards: list[Card] | None = None,
) -> ResolvedGrants:
    """The joined request. Asserts that no argument changes."""
    before = [one.record() for one in mine]
    found = resolve(mine, WantedGrants({}, 0, Wishes(), choices, limits), cards or CARDS, terms or Terms(Policy()))
    assert [one.record() for one in mine] == before
    return found


def request_of(mine: list[Grant], *choices: Choice, **options: Any) -> Request:
    return resolved(mine, *choices, **options).request


def shape(request: Request) -> tuple[int, int, int]:
    """(cards, cores, MiB) of a request."""
    return request.gpus, request.cores, request.memory // MIB


# Cards


def test_cards_come_from_the_choice_by_index_or_uuid() -> None:
    mine = [grant("cores", 200)]
    by_index = choice(Chosen("", 2), Chosen("", 0), key="tencent.com/predicate-gpu-idx-0")
    assert request_of(mine, by_index).fixed == (uuid_of(2), uuid_of(0))
    assert request_of(mine, choice(hami(0), hami(2))).fixed == (uuid_of(0), uuid_of(2))
    assert request_of(mine, by_index, choice(hami(0), hami(2))).fixed == (uuid_of(2), uuid_of(0))
    assert request_of(mine).fixed == ()


def test_a_choice_comes_before_the_device_ids() -> None:
    mine = [grant("cores", 30, 100, 0, 1), grant("memory", GIB, 100, 0, 1)]
    request = request_of(mine, choice(hami(0)))
    assert (request.fixed, request.preferred) == ((uuid_of(0),), (uuid_of(1),))


@pytest.mark.parametrize("chosen", [Chosen("", 3), Chosen("", -1), Chosen("GPU-x"), Chosen(uuid_of(0) + "0")])
def test_a_card_that_is_not_here(chosen: Chosen) -> None:
    with pytest.raises(NoFit, match=rf"annotation {HAMI}: expected a card of this node, found (GPU|index)"):
        request_of([grant("cores", 100)], choice(chosen))


def test_schedulers_that_contradict_each_other() -> None:
    with pytest.raises(NoFit, match=rf"annotation {OWN}: expected the cards of {HAMI}: .*; let one scheduler"):
        request_of([grant("cores", 100)], choice(hami(0)), choice(hami(1), key=OWN))


# Amounts


@pytest.mark.parametrize("terms", [Terms(Policy()), Terms(Policy(), trust=True)])
def test_grants_of_cores_and_memory_are_all_that_counts(terms: Terms) -> None:
    """Annotation and spec have no effect."""
    mine = [grant("cores", 30), grant("memory", GIB)]
    limits = {"nvidia.com/gpumem": 9000, "nvidia.com/gpucores": 90}
    found = resolved(mine, choice(hami(0, 9000, 90)), limits=limits, terms=terms)
    assert shape(found.request) == (1, 30, 1024)
    assert [item.share for item in found.grants] == [None, None]


@pytest.mark.parametrize(
    ("limits", "chosen", "got"),
    [
        # only a count: the vGPU's own part of a card
        (None, (0, 0), (50, 8192)),
        ({}, (0, 0), (50, 8192)),
        # the annotation within that part
        ({}, (3000, 30), (30, 3000)),
        (None, (3000, 30), (30, 3000)),
        ({}, (3000, 0), (50, 3000)),
        # the spec, and the annotation within it
        ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, (3000, 30), (30, 3000)),
        ({"nvidia.com/gpumem": 12000, "nvidia.com/gpucores": 80}, (12000, 80), (80, 12000)),
        ({"nvidia.com/gpumem": 12000}, (10000, 0), (50, 10000)),
        ({"volcano.sh/vgpu-memory": 1024, "volcano.sh/vgpu-cores": 25}, (1024, 25), (25, 1024)),
        # the spec alone: no scheduler has chosen, and an annotation would add no authorization
        ({"nvidia.com/gpumem": 12000, "nvidia.com/gpucores": 80}, (0, 0), (80, 12000)),
        ({"nvidia.com/gpumem-percentage": 50}, (0, 0), (50, 4096)),  # of the smallest card there is
        # all cores: the whole card
        ({"nvidia.com/gpucores": 100, "nvidia.com/gpumem": 3000}, (3000, 100), (100, 3000)),
    ],
)
def test_amounts_of_counted_gpus(limits: dict[str, int] | None, chosen: tuple[int, int], got: tuple[int, int]) -> None:
    choices = [choice(hami(0, *chosen))] if any(chosen) else []
    found = resolved([gpu()], *choices, limits=limits)
    assert shape(found.request) == (1, *got)
    assert found.grants[0].share == (got[0], got[1] * MIB)


def test_a_percentage_is_of_the_chosen_card() -> None:
    limits = {"nvidia.com/gpumem-percentage": 50}
    assert shape(request_of([gpu()], choice(hami(0, 8192, 0)), limits=limits)) == (1, 50, 8192)
    with pytest.raises(VgpuError, match="MiB: expected at most 4096, by the limits in the pod's spec, found 8192"):
        request_of([gpu()], choice(hami(2, 8192, 0)), limits=limits)
    scaled = Terms(Policy("binpack", 1.0, 0.5))
    assert shape(request_of([gpu()], choice(hami(0)), limits=limits, terms=scaled)) == (1, 50, 4096)


FORGERIES = [
    ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, (3001, 30), "MiB: expected at most 3000, by the limits"),
    ({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, (3000, 31), "cores: expected at most 30, by the limits"),
    ({"nvidia.com/gpumem": 3000}, (3000, 51), "cores: expected at most 50, by the limits"),
    ({"nvidia.com/gpumem": 3000}, (0, 100), "cores: expected at most 50, by the limits"),
    ({}, (8193, 0), "MiB: expected at most 8192, by the limits"),
    (None, (8193, 0), "MiB: expected at most 8192, by one vGPU, as the pod's spec is not known"),
    (None, (1 << 30, 0), "MiB: expected at most 8192"),
]


@pytest.mark.parametrize(("limits", "chosen", "text"), FORGERIES)
def test_an_annotation_never_goes_beyond_the_spec(
    limits: dict[str, int] | None, chosen: tuple[int, int], text: str
) -> None:
    with pytest.raises(VgpuError, match=rf"annotation {HAMI}: {text}.*kubernetes\.scheduler_amounts: trust"):
        request_of([gpu()], choice(hami(0, *chosen)), limits=limits)


@pytest.mark.parametrize(("limits", "chosen", "_text"), FORGERIES)
def test_unless_the_node_trusts_it(limits: dict[str, int] | None, chosen: tuple[int, int], _text: str) -> None:
    request = request_of([gpu()], choice(hami(0, *chosen)), limits=limits, terms=Terms(Policy(), trust=True))
    named = limits or {}
    mib, cores = named.get("nvidia.com/gpumem", 8192), named.get("nvidia.com/gpucores", 50)
    assert shape(request) == (1, chosen[1] or cores, chosen[0] or mib)


def test_a_grant_beside_the_count_decides_its_half() -> None:
    """Volcano's memory, for example, is a kubelet device."""
    mine = [gpu(2), grant("memory", 5 * GIB)]
    request = request_of(mine, choice(hami(0, 9999, 20), hami(1, 9999, 20)), limits={"volcano.sh/vgpu-cores": 20})
    assert shape(request) == (2, 20, 5120)


def test_a_whole_card_of_which_only_a_part_is_asked() -> None:
    whole = grant("gpu", 1)
    assert shape(request_of([whole])) == (1, 100, 0)
    request = request_of(
        [grant("gpu", 1)], choice(hami(0, 3000, 30)), limits={"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    )
    assert shape(request) == (1, 30, 3000)
    cores = {"nvidia.com/gpucores": 30}
    assert shape(request_of([grant("gpu", 1)], limits=cores)) == (1, 30, 8192), "the smallest card's"
    assert shape(request_of([grant("gpu", 1)], choice(hami(0)), limits=cores)) == (1, 30, 16384)


def test_an_instance_by_its_profile_and_no_other_grant_with_one() -> None:
    """kubelet counts each instance once, so neither kind of grant takes what the other one counts."""
    mixed, cards = Terms(Policy(), mixed=True), [card(0), instance(1), instance(2), instance(3, name="T4 MIG 2g.10gb")]
    whole = resolved([Grant("m" * 32, "mig", 1, 1.0, devices={cards[1].uuid: "0"})], terms=mixed, cards=cards).request
    assert [place(whole, cards, {}, Policy())[0].index, shape(whole)] == [1, (1, 100, 0)]
    assert place(whole, cards, {cards[1].uuid: Commitment(1, 1)}, Policy())[0].index == 2
    with pytest.raises(NoFit, match=r"0 \(.*profile 1g.5gb.*shared.*shared.*2g.10gb\): excluded by profile 1g.5gb"):
        place(whole, cards, {card.uuid: Commitment(1, 1) for card in cards[1:3]}, Policy())
    share, held = [grant("cores", 30), grant("memory", GIB)], {uuid_of(0): Commitment(exclusive=True)}
    with pytest.raises(NoFit, match=r"held whole; .*excluded by nouse-gputype mig"):
        place(resolved(share, terms=mixed, cards=cards).request, cards, held, Policy())
    with pytest.raises(NoFit, match="expected a card of this node"):
        resolved(share, Choice(OWN, (Chosen(cards[1].uuid, -1, 30, GIB),)), terms=mixed, cards=cards)


@pytest.mark.parametrize("other", [hami(1, 3000, 31), hami(1, 0, 30)])
def test_cards_of_one_container_have_equal_cores(other: Chosen) -> None:
    with pytest.raises(VgpuError, match="expected 30 cores and 3000 MiB, of cards of one container the same cores"):
        request_of([gpu(2)], choice(hami(0, 3000, 30), other))


def test_a_percentage_of_unlike_cards() -> None:
    """HAMi writes it so: gpumem-percentage of each card's own memory."""
    limits = {"nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30}
    sizes = {uuid_of(0): 8192 * MIB, uuid_of(2): 4096 * MIB}
    found = resolved([gpu(2)], choice(hami(0, 8192, 30), hami(2, 4096, 30)), limits=limits)
    request = found.request
    assert (request.cores, request.memories, request.memory) == (30, sizes, 8192 * MIB)
    assert (found.grants[0].share, found.grants[0].memories) == ((30, 8192 * MIB), sizes)
    made = allocation.from_request(request, [CARDS[0], CARDS[2]])
    assert [limit.memory for limit in made.limits] == [8192 * MIB, 4096 * MIB]
    again = request_of(found.grants, choice(hami(0, 100, 30), hami(2, 100, 30)), limits=limits)
    assert again.memories == sizes, "what was settled stays"
    with pytest.raises(VgpuError, match="MiB: expected at most 4096, by the limits in the pod's spec, found 4097"):
        request_of([gpu(2)], choice(hami(0, 8192, 30), hami(2, 4097, 30)), limits=limits)


def test_different_memory_is_placed_and_counted_by_card() -> None:
    limits = {"nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": 30}
    found = resolved([gpu(2)], choice(hami(0, 16384, 30), hami(2, 8192, 30)), limits=limits)
    request, mine = found.request, found.grants
    assert place(request, CARDS, {}, Policy()) == [CARDS[0], CARDS[2]]
    with pytest.raises(NoFit, match=r"2 cards, 30 cores each and 16384 and 8192 MiB: .*memory 8191 MiB free of 8192"):
        place(request, CARDS, {uuid_of(2): Commitment(1, MIB)}, Policy())
    totals = Totals()
    mine[0].holder, mine[0].cards = Holder("p", "c"), [uuid_of(0), uuid_of(2)]
    assert OpenGrants(mine, set(), (), None, PodCgroups("")).add_to(totals) == []
    assert {uuid: held.memory // MIB for uuid, held in totals.cards.items()} == {uuid_of(0): 16384, uuid_of(2): 8192}
    mine[0].id = "a" * 32
    kept = grants.from_record(mine[0].record(), "f")
    assert (kept.memories, kept.share) == (mine[0].memories, mine[0].share)


def test_whole_cards_of_different_memory_have_no_limits() -> None:
    request = request_of([gpu(2)], choice(hami(0, 8192, 100), hami(2, 4096, 100)),
                    limits={"nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 100})  # fmt: skip
    assert (request.exclusive, request.memory, request.memories) == (True, 4096 * MIB, {})


def test_two_dialects_name_the_same_amounts() -> None:
    same = (choice(hami(0, 3000, 30)), choice(hami(0), key=OWN), choice(hami(0, 3000, 30), key="x"))
    assert shape(request_of([gpu()], *same)) == (1, 30, 3000)
    with pytest.raises(VgpuError, match=f"annotation {OWN}: expected 30 cores and 3000 MiB, of"):
        request_of([gpu()], choice(hami(0, 3000, 30)), choice(hami(0, 2000, 30), key=OWN))


def test_what_was_settled_once_stays() -> None:
    """Annotations can be edited while the pod exists. Later starts are like the first."""
    found = resolved([gpu()], choice(hami(0, 3000, 30)))
    assert shape(found.request) == (1, 30, 3000)
    edited = {"nvidia.com/gpumem": 16000, "nvidia.com/gpucores": 100}
    assert shape(request_of(found.grants, choice(hami(0, 16000, 100)), limits=edited)) == (1, 30, 3000)


# Cores without memory


def test_a_share_without_memory_is_refused_with_the_reason() -> None:
    with pytest.raises(VgpuError, match="a grant of memory beside that of cores, found cores alone; a share needs"):
        request_of([grant("cores", 30)])


@pytest.mark.parametrize(
    ("cores", "policy", "cards", "choices", "mib"),
    [
        (50, Policy(), [card(0)], [], 8192),
        (30, Policy(), [card(0)], [], 4915),
        (50, Policy(), CARDS, [], 4096),  # of the smallest card, which is where it may come to
        (50, Policy(), CARDS, [choice(hami(0))], 8192),
        (50, Policy("binpack", 1.0, 0.5), [card(0)], [], 4096),
        (50, Policy("binpack", 2.0, 1.0), [card(0)], [], 4096),  # four of these fill cores and memory alike
        (50, Policy("binpack", 1.0, 4.0), [card(0)], [], 16384),  # but no more than the card has
    ],
)
def test_memory_in_proportion(cores: int, policy: Policy, cards: list[Card], choices: list[Choice], mib: int) -> None:
    found = resolved([grant("cores", cores)], *choices, terms=Terms(policy, proportional=True), cards=cards)
    assert shape(found.request) == (1, cores, mib)
    assert found.grants[0].share == (cores, mib * MIB)


def test_device_ids_decide_which_cards_memory_it_is() -> None:
    terms = Terms(Policy(), proportional=True)
    assert shape(request_of([grant("cores", 50, 100, 0, 1)], terms=terms)) == (1, 50, 8192)


def test_whole_cards_and_named_memory_stay_as_they_are() -> None:
    terms = Terms(Policy(), proportional=True)
    assert shape(request_of([grant("cores", 200)], terms=terms)) == (2, 100, 0)
    assert shape(request_of([grant("cores", 30), grant("memory", GIB)], terms=terms)) == (1, 30, 1024)


def test_terms_come_from_the_settings() -> None:
    terms = terms_of(Settings(), Policy())
    assert (terms.proportional, terms.trust) == (False, False)
    values = {"kubernetes.missing_memory": "proportional", "kubernetes.scheduler_amounts": "trust"}
    terms = terms_of(Settings(dict(values)), Policy())
    assert (terms.proportional, terms.trust) == (True, True)

"""Three containers on two cards: no circle of waiting, nobody starves, and few slices come before a place that is old.

Each mutant takes one rule away. The check has to find it, or it proves nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import re

import explore
import pytest
import slices
from checkout import CHECKOUT
from slices import Model, Rules

ONE, OTHER, BOTH = (0,), (1,), (0, 1)
#: The cards of each container. The first container with one card only has card 0: cards are alike.
SETS = [
    cards
    for cards in itertools.product((ONE, OTHER, BOTH), repeat=3)
    if next((one for one in cards if one != BOTH), ONE) == ONE
]
BESIDE_ONE_EACH = (BOTH, ONE, OTHER)
#: A rule, and cards for which the check finds that it is gone.
STARVING = {
    "ends_early": (ONE, ONE, OTHER),
    "looks_at_all_cards": (OTHER, BOTH, ONE),
    "writes_all_cards": BESIDE_ONE_EACH,
    "has_one_place": (BOTH, BOTH, ONE),
    "keeps_place": (ONE, ONE, OTHER),
    "has_bounded_places": (ONE, ONE, OTHER),
    "gives_way": (ONE, ONE, OTHER),
}
MIXING = {"looks_after_holding": (ONE, ONE, OTHER)}


def broken(model: Model) -> list[str]:
    """What does not hold, each with the steps that lead to it."""
    graph = explore.reach(model.first(), model.follow)
    others = len(model.cards) - 1
    found = {
        "two at work on one card": explore.find(graph, model.mixes),
        "it waits for ever": explore.find_endless(graph, model.waits),
        "each other one began twice": explore.find(graph, lambda state: state.overtaken > others),
    }
    return [f"{what}: {', '.join(way)}" for what, way in found.items() if way is not None]


def without(rule: str) -> Rules:
    return dataclasses.replace(Rules(), **{rule: False})


@pytest.mark.parametrize("cards", SETS, ids=str)
def test_the_rules_hold_for_three_containers_on_two_cards(cards: tuple[slices.Cards, ...]) -> None:
    assert [broken(Model(cards, watched=who)) for who in range(3)] == [[], [], []]


@pytest.mark.parametrize("rule", STARVING)
def test_without_this_rule_a_container_waits_for_ever(rule: str) -> None:
    found = (what for who in range(3) for what in broken(Model(STARVING[rule], without(rule), who)))
    assert any(what.startswith("it waits for ever") for what in found)


@pytest.mark.parametrize("rule", MIXING)
def test_without_this_rule_two_containers_work_at_the_same_time(rule: str) -> None:
    assert any("two at work" in what for what in broken(Model(MIXING[rule], without(rule))))


def test_every_rule_has_a_mutant() -> None:
    rules = {field.name for field in dataclasses.fields(Rules) if field.default is True}
    assert rules == {*STARVING, *MIXING}


def test_steps_are_functions_of_the_code() -> None:
    code = "".join(path.read_text() for path in (CHECKOUT / "libvcuda/src/compute").glob("*.c"))
    model = Model(BESIDE_ONE_EACH, dataclasses.replace(Rules(), passes_over=True))
    graph = explore.reach(model.first(), model.follow)
    steps = {step.name for state in graph.states for step in model.follow(state)}
    names = {re.split(r"[:(]", name)[0] for name in steps} - {"time_passes", "move"}
    assert len(names) == 11
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\(", code)] == []


def test_a_place_that_is_passed_over_while_its_owner_is_blocked_elsewhere_can_starve() -> None:
    """So the time after which others pass it over has to be longer than the neighbours' kernels. One card is safe."""
    rules = dataclasses.replace(Rules(), passes_over=True)
    assert any(what.startswith("it waits for ever") for what in broken(Model(BESIDE_ONE_EACH, rules)))
    assert broken(Model((ONE, ONE, ONE), rules)) == []


def test_the_check_tells_a_circle_that_can_be_left_from_one_that_cannot() -> None:
    """0 <-> 1, and from 1 a step to 2, by the same actor or by one who is never forced."""

    def follow(actor: str) -> dict[int, list[explore.Step]]:
        return {
            0: [explore.Step("forth", 1, "a")],
            1: [explore.Step("back", 0, "a"), explore.Step("out", 2, actor)],
            2: [],
        }

    def endless(actor: str) -> list[str] | None:
        graph = explore.reach(0, lambda state: iter(follow(actor)[state]))
        return explore.find_endless(graph, lambda state: state < 2)

    assert endless("a") is not None  # it may always choose the way back
    assert endless("b") is not None  # b has no step in state 0: it is not always possible
    assert endless("") is not None
    always = {0: [explore.Step("forth", 1, "a"), explore.Step("out", 2, "b")], 1: follow("b")[1], 2: []}
    graph = explore.reach(0, lambda state: iter(always[state]))
    assert explore.find_endless(graph, lambda state: state < 2) is None


@pytest.mark.long
@pytest.mark.parametrize("cards", [(ONE, OTHER, BOTH, OTHER)], ids=str)
def test_the_rules_hold_for_four_containers_on_two_cards(cards: tuple[slices.Cards, ...]) -> None:
    assert [broken(Model(cards, watched=who)) for who in range(4)] == [[], [], [], []]


@pytest.mark.long
@pytest.mark.parametrize("cards", [((0, 1), (1, 2), (0, 2)), ((0, 1, 2), (0, 1), (2,))], ids=str)
def test_the_rules_hold_for_three_containers_on_three_cards(cards: tuple[slices.Cards, ...]) -> None:
    assert [broken(Model(cards, watched=who)) for who in range(3)] == [[], [], []]

"""Threads make and destroy contexts while others allocate: the limit always holds, and nothing stays charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest
from vcuda_boxes import SANITIZER

if TYPE_CHECKING:
    from pathlib import Path

    from vcuda_boxes import Client, Compiled, SimBox

MIB = 1 << 20
STEP = 16 * MIB
OPTIONS = ("-ldl", "-lpthread")
ROUNDS = 40 if SANITIZER else 300


def raced(box: SimBox, program: Path, kinds: tuple[int, int, int], rounds: int) -> tuple[list[int], Client]:
    """(contexts made and refused, calls that got memory), and the process, which has no context any more."""
    racers = box.run(program, *(str(number) for number in (*kinds, rounds, STEP)))
    return [int(word) for word in racers.receive()], racers


def assert_nothing_is_left(box: SimBox, racers: Client, limit: int) -> None:
    assert box.usage()[1:] == (0, 0), "charged for nothing"
    assert int(box.cards()[0]["used"]) == 0
    client = box.opened()
    assert client.free_bytes() == limit - box.context
    assert client.fills(MIB) == (limit - box.context) // MIB * MIB
    assert racers.close() == 0, box.log


@pytest.mark.parametrize("pids", [False, True])
@pytest.mark.parametrize(
    ("makers", "fillers", "holders"),
    [(8, 0, 0), (6, 2, 0), (4, 2, 2), (2, 6, 0), (4, 0, 4)],
    ids=["makers", "few_fill", "some_hold", "many_fill", "many_hold"],
)
def test_racing_contexts_never_pass_the_limit(
    sim_box: Callable[..., SimBox], compiled: Compiled, makers: int, fillers: int, holders: int, pids: bool
) -> None:
    """There is room for both processes' contexts and for little beside."""
    box = sim_box("t4x1", nvml=True, pids=pids)
    limit = 2 * box.context + 8 * STEP + 3 * MIB
    box.limit(limit)
    kinds = (makers, fillers, holders)
    (made, _, granted), racers = raced(box, compiled("context_race.c", *OPTIONS), kinds, ROUNDS)
    assert made > 0, box.log
    assert granted > 0
    assert int(box.cards()[0]["most_used"]) <= limit
    assert_nothing_is_left(box, racers, limit)


@pytest.mark.parametrize("kinds", [(8, 0, 0), (4, 4, 0)])
def test_racing_contexts_of_which_one_process_has_none(
    sim_box: Callable[..., SimBox], compiled: Compiled, kinds: tuple[int, int, int]
) -> None:
    """There is room for the contexts of one process only."""
    box = sim_box("t4x1", nvml=True)
    limit = box.context + 4 * STEP
    box.limit(limit)
    (made, _, granted), racers = raced(box, compiled("context_race.c", *OPTIONS), kinds, ROUNDS)
    assert made > 0, box.log
    assert granted > 0
    assert int(box.cards()[0]["most_used"]) <= limit
    assert_nothing_is_left(box, racers, limit)


def test_no_context_is_refused_where_there_is_room_for_all(sim_box: Callable[..., SimBox], compiled: Compiled) -> None:
    box = sim_box("t4x1", nvml=True)
    limit = 2 * box.context + 16 * STEP
    box.limit(limit)
    (made, refused, granted), racers = raced(box, compiled("context_race.c", *OPTIONS), (8, 0, 0), ROUNDS)
    assert (made, refused, granted) == (2 * 8 * ROUNDS, 0, 2 * 8 * ROUNDS)
    assert_nothing_is_left(box, racers, limit)

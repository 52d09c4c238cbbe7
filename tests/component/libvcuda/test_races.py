"""Processes and threads race for one limit. No byte is exceeded or lost, nothing stays charged, and no call fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest
from vcuda_boxes import BUILD, SANITIZER

from vgpu.config import limits

if TYPE_CHECKING:
    from vcuda_boxes import Client, Compiled, SimBox

MIB = 1 << 20
LIMIT = 256 * MIB
CONTEXT_ROUNDS = 40 if SANITIZER else 300

Program = Callable[..., "Client"]


@pytest.fixture
def start(compiled: Compiled) -> Program:
    """Starts a program in a box that is linked with libcuda.so.1."""

    def start(box: SimBox, name: str, *words: object) -> Client:
        library = str(BUILD / "lib/vcuda/libcuda.so.1")
        program = compiled(f"{name}.c", library, "-Wl,--allow-shlib-undefined", "-lpthread")
        return box.run(program, *map(str, words))

    return start


def numbers(program: Client) -> list[int]:
    return [int(word) for word in program.receive()]


# ---- many processes ----


def raced(start: Program, box: SimBox, *words: object) -> tuple[list[int], Client]:
    """(calls granted, refused and failed) of a race in the box, and the racers, which are still there."""
    cards = [limits.CardLimit(card["uuid"], LIMIT) for card in box.cards()]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    racers = start(box, "race", *words)
    assert racers.receive() == ["ready"], box.log
    racers.send("go")
    return numbers(racers), racers


@pytest.mark.parametrize(("processes", "threads", "rounds"), [(8, 8, 4000), (64, 4, 60)])
def test_racing_for_pools_and_graphs_never_exceeds_the_limit_and_loses_no_byte(
    t4: SimBox, start: Program, processes: int, threads: int, rounds: int
) -> None:
    (granted, refused, failed), racers = raced(start, t4, "pools", processes, threads, rounds, 2 * MIB)
    assert (granted > 0, refused > 0, failed) == (True, True, 0)
    assert LIMIT // 4 < int(t4.cards()[0]["most_used"]) - processes * t4.context <= LIMIT
    assert (t4.held(), t4.caller().left(), t4.usage()[1:]) == (0, LIMIT, (0, 0))
    assert racers.close() == 0, t4.log


@pytest.mark.parametrize(("processes", "threads", "rounds"), [(2, 8, 200), (6, 2, 200)])
def test_racing_to_share_memory_loses_no_byte(
    sim_box: Callable[..., SimBox], start: Program, processes: int, threads: int, rounds: int
) -> None:
    box = sim_box("h200x8")
    (granted, _, failed), racers = raced(start, box, "shares", processes, threads, rounds, 4 * MIB)
    assert (granted > 0, failed) == (True, 0)
    assert box.usage()[1:] == (0, 0), "charged for nothing"
    client = box.caller()
    assert int(box.cards()[0]["used"]) == (processes + 1) * box.context
    assert client.left() == LIMIT
    assert racers.close() == 0, box.log


# ---- two calls at once ----


@pytest.mark.parametrize("kind", ["opens", "guesses"])
def test_what_two_threads_do_at_once_is_charged(t4: SimBox, start: Program, kind: str) -> None:
    """Two open one handle, or one maps memory by the handle that another one is just making."""
    t4.limit(LIMIT)
    threads = start(t4, "thread_race", kind, 2000, 4 * MIB)
    met, lost = numbers(threads)
    assert met > 0, t4.log
    assert lost == 0
    assert threads.close() == 0, t4.log


def test_a_call_that_makes_memory_gets_its_turn_among_calls_that_map(t4: SimBox, start: Program) -> None:
    """Without turns 10 to 15 of 400 calls were overtaken. With them 0 or 1 is: the host stops its thread before it."""
    t4.limit(LIMIT)
    threads = start(t4, "thread_race", "waits", 400, 4 * MIB)
    (overtaken,) = numbers(threads)
    assert overtaken < 5
    assert threads.close() == 0, t4.log


# ---- contexts ----

STEP = 16 * MIB


@pytest.fixture
def contexts(sim_box: Callable[..., SimBox], start: Program) -> Callable[..., list[int]]:
    """Races for room of contexts, steps and MiB, and leaves nothing. Gives (contexts made, refused, calls granted)."""

    def race(room: tuple[int, int, int], kinds: tuple[int, int, int], pids: bool = False) -> list[int]:
        box = sim_box("t4x1", nvml=True, pids=pids)
        limit = room[0] * box.context + room[1] * STEP + room[2] * MIB
        box.limit(limit)
        racers = start(box, "context_race", *kinds, CONTEXT_ROUNDS, STEP)
        found = numbers(racers)
        assert found[0] > 0 and found[2] > 0, box.log
        assert int(box.cards()[0]["most_used"]) <= limit
        assert box.usage()[1:] == (0, 0), "charged for nothing"
        assert int(box.cards()[0]["used"]) == 0
        client = box.opened()
        assert client.free_bytes() == limit - box.context
        assert client.fills(MIB) == (limit - box.context) // MIB * MIB
        assert racers.close() == 0, box.log
        return found

    return race


@pytest.mark.sample(3)
@pytest.mark.parametrize("pids", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [(8, 0, 0), (6, 2, 0), (4, 2, 2), (2, 6, 0), (4, 0, 4)],
    ids=["makers", "few_fill", "some_hold", "many_fill", "many_hold"],
)
def test_racing_contexts_never_pass_the_limit(
    contexts: Callable[..., list[int]], kinds: tuple[int, int, int], pids: bool
) -> None:
    """There is room for both processes' contexts and for little beside."""
    contexts((2, 8, 3), kinds, pids)


@pytest.mark.parametrize("kinds", [(8, 0, 0), (4, 4, 0)])
def test_racing_contexts_of_which_one_process_has_none(
    contexts: Callable[..., list[int]], kinds: tuple[int, int, int]
) -> None:
    """There is room for the contexts of one process only."""
    contexts((1, 4, 0), kinds)


def test_no_racing_context_is_refused_where_there_is_room_for_all(contexts: Callable[..., list[int]]) -> None:
    all_of_them = 2 * 8 * CONTEXT_ROUNDS
    assert contexts((2, 16, 0), (8, 0, 0)) == [all_of_them, 0, all_of_them]

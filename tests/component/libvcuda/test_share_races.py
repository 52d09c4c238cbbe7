"""Processes and threads race for one limit while they share, map and bind memory. No byte is lost, no call fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits

if TYPE_CHECKING:
    from vcuda_boxes import Client, Compiled, SimBox

MIB = 1 << 20
LIMIT = 256 * MIB
STEP = 4 * MIB


def raced(box: SimBox, compiled: Compiled, processes: int, threads: int, rounds: int) -> tuple[list[int], Client]:
    """(calls granted, refused and failed) of a race in the box, and the racers, which are still there."""
    cards = [limits.CardLimit(card["uuid"], LIMIT) for card in box.cards()]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    words = [str(number) for number in (processes, threads, rounds, STEP)]
    racers = box.run(compiled("share_race.c", "-ldl", "-lpthread"), *words)
    assert racers.receive() == ["ready"], box.log
    racers.send("go")
    return [int(word) for word in racers.receive()], racers


@pytest.mark.parametrize(("processes", "threads", "rounds"), [(2, 8, 200), (6, 2, 200)])
def test_racing_to_share_memory_loses_no_byte(
    sim_box: Callable[..., SimBox], compiled: Compiled, processes: int, threads: int, rounds: int
) -> None:
    box = sim_box("h200x8")
    (granted, _, failed), racers = raced(box, compiled, processes, threads, rounds)
    assert granted > 0
    assert failed == 0
    assert box.usage()[1:] == (0, 0), "charged for nothing"
    client = box.caller()
    assert int(box.cards()[0]["used"]) == (processes + 1) * box.context
    assert client.left() == LIMIT
    assert racers.close() == 0, box.log


@pytest.mark.parametrize("kind", ["opens", "guesses"])
def test_what_two_threads_do_at_once_is_charged(sim_box: Callable[..., SimBox], compiled: Compiled, kind: str) -> None:
    """Two open one handle, or one maps memory by the handle that another one is just making."""
    box = sim_box("t4x1")
    box.limit(LIMIT)
    threads = box.run(compiled("thread_race.c", "-ldl", "-lpthread"), kind, "2000", str(STEP))
    met, lost = (int(word) for word in threads.receive())
    assert met > 0, box.log
    assert lost == 0
    assert threads.close() == 0, box.log


def test_a_call_that_makes_memory_gets_its_turn_among_calls_that_map(
    sim_box: Callable[..., SimBox], compiled: Compiled
) -> None:
    """The bound is what six threads do while the host lets one thread wait. Without turns it was 150,000 and more."""
    box = sim_box("t4x1")
    box.limit(LIMIT)
    threads = box.run(compiled("thread_race.c", "-ldl", "-lpthread"), "waits", "400", str(STEP))
    (longest,) = (int(word) for word in threads.receive())
    assert longest < 40_000
    assert threads.close() == 0, box.log

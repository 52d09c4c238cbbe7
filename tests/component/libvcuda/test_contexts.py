"""Contexts that the limit has no room for are not made: not even for a moment is the card's memory above the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from daemons import wait_for
from vcuda_boxes import load_simctl

if TYPE_CHECKING:
    from typing import Callable

    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30


def most(box: SimBox) -> int:
    """The most bytes that the card's processes have held at once."""
    return int(box.cards()[0]["most_used"])


def created(box: SimBox) -> Client:
    """A client without a context, which has called cuInit."""
    client = box.start()
    client.does("init")
    return client


@pytest.mark.parametrize("call", ["open 0", "create 0"])
@pytest.mark.parametrize("has_looked", [True, False])
def test_a_context_that_is_refused_never_exists(t4_nvml: SimBox, call: str, has_looked: bool) -> None:
    limit = 2 * GIB
    t4_nvml.limit(limit)
    holder = t4_nvml.opened()
    if has_looked:
        holder.free_bytes()
    assert holder.alloc(limit - t4_nvml.context - 40 * MIB)[0] == 0
    refused = created(t4_nvml)
    for _ in range(20):
        assert refused.numbers(call)[0] == OUT_OF_MEMORY
    assert most(t4_nvml) == limit - 40 * MIB
    assert holder.alloc(40 * MIB)[0] == 0


@pytest.mark.parametrize("_round", range(12))
def test_contexts_that_race_for_the_last_room(t4_nvml: SimBox, _round: int) -> None:
    """Nobody knows the size of a context when they begin. As many are made as there is room for."""
    room = 3
    limit = room * t4_nvml.context + 20 * MIB
    t4_nvml.limit(limit)
    clients = [created(t4_nvml) for _ in range(8)]
    for client in clients:
        client.send("open 0")
    results = [client.receive()[0] for client in clients]
    assert sorted(results) == ["0"] * room + [str(OUT_OF_MEMORY)] * (len(clients) - room)
    assert most(t4_nvml) <= limit
    assert t4_nvml.usage()[1:] == (0, room * t4_nvml.context)


def test_contexts_that_race_with_allocations(t4_nvml: SimBox) -> None:
    limit = 3 * GIB
    t4_nvml.limit(limit)
    takers, comers = [t4_nvml.opened() for _ in range(2)], [created(t4_nvml) for _ in range(4)]
    for taker in takers:
        taker.send(f"threads 1 {16 * MIB} 1000")
    for comer in comers:
        comer.send("open 0")
    for client in (*takers, *comers):
        client.receive()
    assert limit - t4_nvml.context <= most(t4_nvml) <= limit


def test_a_process_that_is_killed_while_it_makes_a_context(t4_nvml: SimBox) -> None:
    limit = 2 * t4_nvml.context
    t4_nvml.limit(limit)
    for _ in range(10):
        killed = created(t4_nvml)
        killed.send("open 0")
        killed.kill()
    client = t4_nvml.opened()
    assert client.free_bytes() == limit - t4_nvml.context


def test_a_context_that_the_driver_refuses_leaves_nothing(t4_nvml: SimBox) -> None:
    t4_nvml.limit(2 * t4_nvml.context + MIB)
    holder, client = t4_nvml.opened(), t4_nvml.caller()
    client.does("cuDevicePrimaryCtxReset_v2 0")
    assert client.numbers(f"cuCtxCreate_v2 & {1 << 30} 0")[0] not in (0, OUT_OF_MEMORY)
    assert t4_nvml.usage()[1:] == (0, t4_nvml.context)
    assert holder.alloc(t4_nvml.context + MIB)[0] == 0


@pytest.mark.parametrize("is_further", [True, False], ids=["further", "in-a-slot-that-had-one"])
def test_a_context_counts_for_a_process_of_another_namespace(sim_box: Callable[..., SimBox], is_further: bool) -> None:
    """NVML does not tell it of the holder's contexts."""
    box = sim_box("harsh", nvml=True)
    box.limit(4 * GIB)
    ended, holder = box.caller(), box.caller()
    ended.left()
    ended.kill()
    holder.left()  # the holder has booked its first context, and the other one's slot is free
    if is_further:
        holder.made("cuCtxCreate_v2 & 0 0")
    else:
        box.caller()
    box.limit(int(box.cards()[0]["used"]) + box.context // 2)
    nested = box.uninitialized(nested=True)
    nested.does("cuInit 0")
    assert nested.numbers("cuDevicePrimaryCtxRetain & 0")[0] == OUT_OF_MEMORY


@pytest.mark.parametrize(
    "beside",
    [
        f"python sum(call(['cuMemAlloc_v2','&','{2 * MIB + 1}'])[0]for(_)in(range(100)))",
        "python sum(call(['cuStreamCreate','&','1'])[0]for(_)in(range(300)))",
    ],
    ids=["padding", "streams"],
)
def test_what_a_process_takes_beside_its_context_is_no_part_of_it(sim_box: Callable[..., SimBox], beside: str) -> None:
    """Nobody had a reason to look at NVML before. What was seen later was taken for the size of a context."""
    box = sim_box("harsh", nvml=True)
    box.limit(8 * GIB)
    box.caller().does(beside)
    box.limit(int(box.cards()[0]["used"]) + box.context + 70 * MIB)
    box.caller()


def test_a_process_that_exits_leaves_its_slot_with_the_lock(sim_box: Callable[..., SimBox]) -> None:
    """Its driver still tears down what it holds of another card. Who had the slot next could not be seen to end."""
    box = sim_box({**load_simctl().load_profile("harsh"), "memory": {"teardown_ms": 3000}}, nvml=True)
    box.limit(64 * MIB)
    leaver, nested = box.caller(1), box.uninitialized(nested=True)
    assert leaver.numbers("cuDevicePrimaryCtxRetain & 0")[0] == OUT_OF_MEMORY
    nested.does("cuInit 0")
    assert leaver.process.stdin
    leaver.process.stdin.close()
    wait_for(lambda: box.usage()[0] == 0)
    box.limit(4 * GIB)
    nested.made("cuDevicePrimaryCtxRetain & 0")
    assert nested.close() == leaver.close() == 0
    assert box.caller().left() == 4 * GIB - box.context


def test_who_fills_a_card_learns_what_a_context_takes(sim_box: Callable[..., SimBox]) -> None:
    """It has no context on a limited card. A process of another namespace, which sees none, made one to find out."""
    box = sim_box("harsh", nvml=True)
    box.limit(4 * GIB)
    box.caller()
    left = (4 * GIB - int(box.cards()[0]["used"])) // (2 * MIB) * 2 * MIB
    box.caller(1).made(f"cuMemCreate & {left} {{i:1,i:0,i:1,i:0,q:0,q:0}} 0")
    nested = box.uninitialized(nested=True)
    nested.does("cuInit 0")
    assert nested.numbers("cuDevicePrimaryCtxRetain & 0")[0] == OUT_OF_MEMORY
    assert int(box.cards()[0]["most_used"]) <= 4 * GIB + 64 * MIB


@pytest.mark.parametrize("who", ["other_context", "other_memory", "own_memory"])
def test_a_further_context_in_the_making_refuses_nobody(sim_box: Callable[..., SimBox], who: str) -> None:
    """It takes nothing, but nobody knows that until it is made, so its size is booked."""
    box = sim_box({**load_simctl().load_profile("t4x1"), "memory": {"context_ms": 400}}, nvml=True)
    box.limit((2 if who == "other_context" else 3) * box.context)
    maker, other = box.caller(), box.uninitialized()
    other.does("cuInit 0")
    if who != "other_context":
        box.initialized(other, 0)
    booked = box.usage()[2]
    thread = "__import__('threading').Thread(target=call,args=(['cuCtxCreate_v2','&','0','0'],))"
    maker.ask(f"python globals().update(thread={thread})or(globals()['thread'].start())")
    lives = "python globals()['thread'].is_alive()"  # on a busy machine it may be over before anybody looks
    wait_for(lambda: box.usage()[2] > booked or maker.ask(lives) == ["False"])
    if who == "other_context":
        box.initialized(other, 0)
    else:
        (other if who == "other_memory" else maker).made(f"cuMemAlloc_v2 & {box.context}")

"""libvcuda charges a graph's memory from its launch on, not only when its stream runs it; on the simulated driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from daemons import wait_for

from vgpu.config import limits

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 1 << 30
MOST = 616 * MIB  # two of these do not fit
AUTO_FREE = 1
NON_BLOCKING = 1
NODE = "{i:1,i:0,i:1,i:%d,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,Q:0,Q:0,Q:%d,Q:0}"


@pytest.fixture
def client(t4: SimBox) -> Client:
    t4.limit(LIMIT)
    return t4.caller()


def graph_exec(client: Client, size: int, frees: bool = False, flags: int = 0) -> int:
    """An instantiated graph that allocates `size` bytes."""
    stream = client.made(f"cuStreamCreate & {NON_BLOCKING}")
    client.does(f"cuStreamBeginCapture_v2 {stream} 2")
    pointer = client.made(f"cuMemAllocAsync & {size} {stream}")
    if frees:
        client.does(f"cuMemFreeAsync {pointer} {stream}")
    graph = client.made(f"cuStreamEndCapture {stream} &")
    client.does(f"cuStreamDestroy_v2 {stream}")
    return client.made(f"cuGraphInstantiateWithFlags & {graph} {flags}")


class Gate:
    """A stream that waits until it is opened."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stream = client.made(f"cuStreamCreate & {NON_BLOCKING}")
        self.word = client.made("cuMemHostAlloc & 4096 0")
        self.close()

    def close(self) -> None:
        self.client.ask(f"python ctypes.memset({self.word},0,4)")
        self.client.does(f"cuStreamWaitValue32_v2 {self.stream} {self.word} 1 0")

    def open(self) -> None:
        self.client.ask(f"python ctypes.memset({self.word},1,1)")
        self.client.does(f"cuStreamSynchronize {self.stream}")


def test_a_second_graph_waits_for_the_first_ones_memory(t4: SimBox, client: Client) -> None:
    """Both are launched without waiting and do not fit at once. None is refused, as on the bare driver."""
    execs = [graph_exec(client, MOST, frees=True) for _ in range(2)]
    for _ in range(10):
        for executable in execs:
            client.does(f"cuGraphLaunch {executable} 0")
    client.does("cuCtxSynchronize")
    client.does("cuDeviceGraphMemTrim 0")
    assert (t4.held(), client.left()) == (0, LIMIT)


def test_what_a_graph_left_and_somebody_freed_counts_anew(t4: SimBox, client: Client) -> None:
    """Otherwise libvcuda would take another graph's memory for this graph's."""
    executable = graph_exec(client, MOST, flags=AUTO_FREE)
    client.does(f"cuGraphLaunch {executable} 0")
    client.does("cuCtxSynchronize")
    other = graph_exec(client, LIMIT - MOST)
    client.does(f"cuGraphLaunch {other} 0")
    client.does("cuCtxSynchronize")
    client.does(f"cuGraphLaunch {executable} 0")  # instead of the memory that it left
    client.does("cuCtxSynchronize")
    assert t4.held() == t4.usage()[2] == LIMIT
    client.does("cuDeviceGraphMemTrim 0")
    assert (t4.held(), client.left()) == (LIMIT, 0)


def test_a_launch_that_takes_nothing_more_needs_no_room(sim_box: Callable[..., SimBox]) -> None:
    """The pool has grown by more than the graph needs, and so a little beyond the limit."""
    box = sim_box("harsh", nvml=True)
    box.limit(4 * LIMIT)
    client = box.caller()
    client.left()
    executable = graph_exec(client, 2 * MIB, frees=True)
    box.limit(int(box.cards()[0]["used"]) + 8 * MIB)
    for _ in range(2):
        client.does(f"cuGraphLaunch {executable} 0")
        client.does("cuCtxSynchronize")


def test_a_graph_of_two_cards_fits_both_to_the_byte(sim_box: Callable[..., SimBox]) -> None:
    box, size = sim_box("a100x2"), 6 * MIB
    cards = [limits.CardLimit(card["uuid"], size) for card in box.cards()]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    client = box.caller()
    graph = client.made("cuGraphCreate & 0")
    for card in range(2):
        client.made(f"cuGraphAddMemAllocNode & {graph} 0 0 {NODE % (card, size)}")
    client.does(f"cuGraphLaunch {client.made(f'cuGraphInstantiateWithFlags & {graph} {AUTO_FREE}')} 0")


def test_a_launch_into_a_capture_takes_nothing(t4: SimBox, client: Client) -> None:
    executable = graph_exec(client, MOST, frees=True)
    stream = client.made(f"cuStreamCreate & {NON_BLOCKING}")
    client.does(f"cuStreamBeginCapture_v2 {stream} 2")
    client.does(f"cuGraphLaunch {executable} {stream}")
    graph = client.made(f"cuStreamEndCapture {stream} &")
    assert client.left() == LIMIT
    nodes = client.numbers(f"cuGraphGetNodes {graph} 0 &")[1]
    assert nodes == 2  # and no event of libvcuda
    client.does(f"cuGraphLaunch {client.made(f'cuGraphInstantiateWithFlags & {graph} 0')} {stream}")
    client.does(f"cuStreamSynchronize {stream}")
    assert t4.held() == t4.usage()[2] == MOST


def test_launches_of_a_context_that_ends_are_forgotten(t4: SimBox, client: Client) -> None:
    client.does(f"cuGraphLaunch {graph_exec(client, MOST)} 0")
    client.does("cuDevicePrimaryCtxReset_v2 0")
    client.made("cuDevicePrimaryCtxRetain & 0")
    client.made(f"cuMemAlloc_v2 & {LIMIT}")
    assert t4.held() == LIMIT


def test_what_a_pending_launch_has_booked_hides_no_overhead(sim_box: Callable[..., SimBox]) -> None:
    """A look at NVML's figure, which does not have it yet. Then the limit has no room for what the launch takes."""
    box = sim_box("t4x1", nvml=True)
    box.limit(LIMIT)
    client, other = box.caller(), box.caller()
    gate = Gate(client)
    client.does(f"cuGraphLaunch {graph_exec(client, 64 * MIB)} {gate.stream}")
    client.does("cuDeviceGraphMemTrim 0")
    client.does("cuCtxSetLimit 0 2048")
    left = client.left()
    assert left == other.left() == LIMIT - 2 * box.context - 64 * MIB
    other.made(f"cuMemAlloc_v2 & {left}")
    gate.open()
    assert (int(box.cards()[0]["used"]), client.left()) == (LIMIT, 0)


def test_what_a_pool_has_given_back_hides_no_overhead(sim_box: Callable[..., SimBox]) -> None:
    """The stream frees it, and no call tells libvcuda: the look took it for memory that the driver still had."""
    box = sim_box("t4x1", nvml=True)
    box.limit(LIMIT)
    client, other = box.caller(), box.caller()
    gate = Gate(client)
    client.does(f"cuMemFreeAsync {client.made(f'cuMemAllocAsync & {64 * MIB} 0')} {gate.stream}")
    client.ask(f"python ctypes.memset({gate.word},1,1)")
    wait_for(lambda: int(box.cards()[0]["used"]) == 2 * box.context, what="the stream frees nothing")
    client.does("cuCtxSetLimit 0 2048")
    assert client.left() == other.left() == LIMIT - 2 * box.context


def test_a_graph_that_has_run_hides_nothing_that_blocks_give_back(sim_box: Callable[..., SimBox]) -> None:
    """The driver takes 6 MiB for each 5."""
    box = sim_box("harsh", nvml=True)
    box.limit(4 * LIMIT)
    client, other = box.caller(), box.caller()
    other.left()  # the size of a context is known
    blocks = [client.made(f"cuMemAlloc_v2 & {5 * MIB}") for _ in range(90)]
    client.left()
    gate = Gate(client)
    client.does(f"cuGraphLaunch {graph_exec(client, MOST, frees=True)} {gate.stream}")
    client.does("cuDeviceGraphMemTrim 0")
    client.left()  # no mark is left
    gate.open()
    client.does(f"cuMemFree_v2 {client.made(f'cuMemAlloc_v2 & {2 * MIB}')}")  # the pool has taken what was pending
    for block in blocks:
        client.does(f"cuMemFree_v2 {block}")
    assert 4 * LIMIT - other.left() <= int(box.cards()[0]["used"]) + 16 * MIB

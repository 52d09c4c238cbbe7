"""Memory by the driver's newer ways: graph nodes by the call for all kinds, and a green context without another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 256 * MIB
ALLOCATION_NODE = "{i:10,i:0,i:0,i:0,i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:%d,q:0" + (
    ",q:0" * 15 + "}"
)

CONDITIONAL_NODE = "{i:13,i:0,i:0,i:0,Q:%d,i:0,I:1" + ",q:0" * 28 + "}"


@pytest.fixture
def client(t4: SimBox) -> Client:
    t4.limit(LIMIT)
    return t4.caller()


@pytest.mark.parametrize(("call", "more"), [("cuGraphAddNode", ""), ("cuGraphAddNode_v2", "0 ")])
def test_an_allocation_node_of_the_general_call_is_charged(t4: SimBox, client: Client, call: str, more: str) -> None:
    def graph(size: int) -> int:
        made = client.made("cuGraphCreate & 0")
        client.made(f"{call} & {made} 0 {more}0 {ALLOCATION_NODE % size}")
        return made

    executable = client.made(f"cuGraphInstantiateWithFlags & {graph(LIMIT // 2)} 0")
    client.does(f"cuGraphLaunch {executable} 0")
    client.does("cuCtxSynchronize")
    assert (client.left(), t4.held()) == (LIMIT // 2, LIMIT // 2)
    assert client.numbers(f"cuGraphInstantiateWithFlags & {graph(LIMIT)} 0")[0] == OUT_OF_MEMORY
    assert t4.held() == LIMIT // 2


def test_a_graph_with_a_conditional_node_is_charged_for_its_other_nodes(t4: SimBox, client: Client) -> None:
    """Bodies contain no memory nodes. libvcuda passes the conditional node on unchanged."""
    graph = client.made("cuGraphCreate & 0")
    decider = client.made(f"cuGraphConditionalHandleCreate & {graph} 0 1 1")
    client.made(f"cuGraphAddNode & {graph} 0 0 {CONDITIONAL_NODE % decider}")
    client.made(f"cuGraphAddNode & {graph} 0 0 {ALLOCATION_NODE % (LIMIT // 2)}")
    client.does(f"cuGraphLaunch {client.made(f'cuGraphInstantiateWithFlags & {graph} 0')} 0")
    client.does("cuCtxSynchronize")
    assert (client.left(), t4.held()) == (LIMIT // 2, LIMIT // 2)


def test_the_context_that_a_green_context_creates_is_charged(sim_box: Callable[..., SimBox]) -> None:
    """It keeps the driver's context for the process alive, without a call that creates one."""
    box = sim_box("t4x1", nvml=True)
    box.limit(box.context + MIB)
    client, other = box.caller(), box.start()
    buffer = client.ask("python ctypes.addressof(globals().setdefault('b',ctypes.create_string_buffer(512)))")[0]
    client.does(f"cuDeviceGetDevResource 0 {buffer} 1")
    resources = client.made(f"cuDevResourceGenerateDesc & {buffer} 1")
    client.does("cuDevicePrimaryCtxReset_v2 0")
    green = client.made(f"cuGreenCtxCreate & {resources} 0 1")
    assert other.ask("init") == ["0"]
    assert other.ask("open 0") != ["0", "0"]
    client.does(f"cuGreenCtxDestroy {green}")
    assert other.ask("open 0") == ["0", "0"]

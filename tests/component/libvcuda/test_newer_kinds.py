"""Memory by the driver's newer ways: graph nodes by the call for all kinds, pools and multicast objects of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
LIMIT = 256 * MIB
FILE_DESCRIPTOR = 1
SHARED_POOL = f"{{i:1,i:{FILE_DESCRIPTOR},i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}}"
PINNED, MANAGED = 1, 2
DEVICE_0, HOST = "{i:1,i:0}", "{i:2,i:0}"
ON_CARD = "{i:1,i:0,i:1,i:0,q:0,q:0}"
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


def test_a_green_context_is_charged_like_any_other(t4: SimBox, client: Client) -> None:
    """Its allocations are charged. The context itself is not, as the process has a context on the card."""
    whole = client.made("cuMemHostAlloc & 288 0")
    client.does(f"cuDeviceGetDevResource 0 {whole} 1")
    resources = client.made(f"cuDevResourceGenerateDesc & {whole} 1")
    green = client.made(f"cuGreenCtxCreate & {resources} 0 1")
    context = client.made(f"cuCtxFromGreenCtx & {green}")
    assert client.left() == LIMIT
    client.does(f"cuCtxPushCurrent_v2 {context}")
    client.made(f"cuMemAlloc_v2 & {LIMIT // 2}")
    assert client.numbers(f"cuMemAlloc_v2 & {LIMIT}")[0] == OUT_OF_MEMORY
    assert (client.left(), t4.held()) == (LIMIT // 2, LIMIT // 2)


@pytest.fixture
def multicaster(sim_box: Callable[..., SimBox]) -> tuple[SimBox, Client, int]:
    """A box on cards that can multicast, a client, and a multicast object of one card."""
    box = sim_box("h200x8")
    cards = [limits.CardLimit(card["uuid"], LIMIT) for card in box.cards()]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    client = box.caller()
    multicast = client.made(f"cuMulticastCreate & {{I:1,I:0,Q:{LIMIT},Q:0,Q:0}}")
    client.does(f"cuMulticastAddDevice {multicast} 0")
    assert client.left() == LIMIT
    return box, client, multicast


def bound(client: Client, to: int, call: str, offset: int = 0, size: int = LIMIT) -> None:
    """Binds new memory by the call, and gives up its handle and its mapping."""
    device = "0 " if call.endswith("_v2") else ""
    memory = client.made(f"cuMemCreate & {size} {ON_CARD} 0")
    if "Addr" in call:
        address = client.made(f"cuMemAddressReserve & {size} 0 0 0")
        client.does(f"cuMemMap {address} {size} 0 {memory} 0")
        client.does(f"{call} {to} {device}{offset} {address} {size} 0")
        client.does(f"cuMemUnmap {address} {size}")
    else:
        client.does(f"{call} {to} {device}{offset} {memory} 0 {size} 0")
    client.does(f"cuMemRelease {memory}")


BINDS = ["cuMulticastBindMem", "cuMulticastBindMem_v2", "cuMulticastBindAddr", "cuMulticastBindAddr_v2"]


@pytest.mark.parametrize("call", BINDS)
def test_bound_memory_is_charged_until_it_is_unbound(multicaster: tuple[SimBox, Client, int], call: str) -> None:
    box, client, multicast = multicaster
    bound(client, multicast, call)
    assert (client.left(), box.held()) == (0, LIMIT)
    assert client.numbers(f"cuMemAlloc_v2 & {2 * MIB}")[0] == OUT_OF_MEMORY
    client.does(f"cuMulticastUnbind {multicast} 0 0 {LIMIT}")
    assert (client.left(), box.held()) == (LIMIT, 0)
    bound(client, multicast, call)
    client.does(f"cuMemRelease {multicast}")
    assert (client.left(), box.held()) == (LIMIT, 0)


def test_a_mapped_multicast_object_keeps_what_is_bound(multicaster: tuple[SimBox, Client, int]) -> None:
    box, client, multicast = multicaster
    for half in range(2):
        bound(client, multicast, BINDS[half], half * LIMIT // 2, LIMIT // 2)
    client.does(f"cuMulticastUnbind {multicast} 0 0 {LIMIT // 2}")
    address = client.made(f"cuMemAddressReserve & {LIMIT} 0 0 0")
    client.does(f"cuMemMap {address} {LIMIT} 0 {multicast} 0")
    client.does(f"cuMemRelease {multicast}")
    assert (client.left(), box.held()) == (LIMIT // 2, LIMIT // 2)
    client.does(f"cuMemUnmap {address} {LIMIT}")
    assert (client.left(), box.held()) == (LIMIT, 0)


def test_a_bind_that_fails_keeps_nothing(multicaster: tuple[SimBox, Client, int]) -> None:
    box, client, multicast = multicaster
    memory = client.made(f"cuMemCreate & {LIMIT} {ON_CARD} 0")
    assert client.numbers(f"cuMulticastBindMem {multicast} 1 {memory} 0 {LIMIT} 0")[0] != 0
    client.does(f"cuMemRelease {memory}")
    assert (client.left(), box.held()) == (LIMIT, 0)


@pytest.fixture
def standing(client: Client) -> Callable[[str, int], int]:
    """The default pool of a location and a type of memory, by CUDA 13's call."""
    return lambda location, kind: client.made(f"cuMemGetDefaultMemPool & {location} {kind}")


def test_a_managed_pool_is_charged_like_managed_memory(
    t4: SimBox, client: Client, standing: Callable[[str, int], int]
) -> None:
    pool = standing(DEVICE_0, MANAGED)
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT // 2} {pool} 0")
    assert (client.left(), t4.held()) == (LIMIT // 2, LIMIT // 2)
    assert client.numbers(f"cuMemAllocFromPoolAsync & {LIMIT} {pool} 0")[0] == OUT_OF_MEMORY
    client.does(f"cuMemFreeAsync {pointer} 0")
    client.does("cuCtxSynchronize")
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_a_pool_of_a_device_is_the_same_by_its_location(
    t4: SimBox, client: Client, standing: Callable[[str, int], int]
) -> None:
    pool = standing(DEVICE_0, PINNED)
    assert pool == client.made("cuDeviceGetDefaultMemPool & 0")
    client.made(f"cuMemAllocFromPoolAsync & {LIMIT // 2} {pool} 0")
    client.made(f"cuMemAllocAsync & {LIMIT // 4} 0")
    assert (client.left(), t4.held()) == (LIMIT // 4, LIMIT // 4 * 3)
    assert client.numbers(f"cuMemAllocFromPoolAsync & {LIMIT // 2} {pool} 0")[0] == OUT_OF_MEMORY


def test_the_pool_set_for_a_device_provides_its_memory(t4: SimBox, client: Client) -> None:
    pool = client.made(f"cuMemPoolCreate & {SHARED_POOL}")
    client.does(f"cuMemSetMemPool {DEVICE_0} {PINNED} {pool}")
    assert client.made(f"cuMemGetMemPool & {DEVICE_0} {PINNED}") == pool
    client.made(f"cuMemAllocAsync & {LIMIT} 0")
    assert (client.left(), t4.held()) == (0, LIMIT)
    client.does(f"cuMemPoolDestroy {pool}")
    assert client.left() == 0


def test_a_pool_of_the_host_costs_the_card_nothing(
    t4: SimBox, client: Client, standing: Callable[[str, int], int]
) -> None:
    made = client.made(f"cuMemPoolCreate & {SHARED_POOL.replace('i:1,i:0', 'i:2,i:0', 1)}")
    for pool in (standing(HOST, PINNED), made):
        pointer = client.made(f"cuMemAllocFromPoolAsync & {2 * LIMIT} {pool} 0")
        assert (client.left(), t4.held()) == (LIMIT, 0)
        client.does(f"cuMemFreeAsync {pointer} 0")
    assert client.left() == LIMIT


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

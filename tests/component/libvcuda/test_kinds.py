"""libvcuda charges each kind of device memory the card's bytes and releases the charge, on the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import pytest

from vgpu.config import limits, usage

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = GIB
ON_CARD = "{i:1,i:1,i:1,i:0,q:0,q:0}"  # CUmemAllocationProp: pinned, exportable as a file, device 0
POOL = "{i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}"  # CUmemPoolProps
FLOAT, LAYERED = 0x20, 1
RELEASE_THRESHOLD = 4


@pytest.fixture
def client(t4: SimBox) -> Client:
    t4.limit(LIMIT)
    return t4.caller()


# Physical memory apart from addresses


def test_created_memory_is_charged_until_it_is_released(t4: SimBox, client: Client) -> None:
    handle = client.made(f"cuMemCreate & {LIMIT} {ON_CARD} 0")
    assert (client.left(), t4.held()) == (0, LIMIT)
    assert client.numbers(f"cuMemCreate & {2 * MIB} {ON_CARD} 0")[0] == OUT_OF_MEMORY
    client.does(f"cuMemRelease {handle}")
    assert (client.left(), t4.held()) == (LIMIT, 0)
    assert client.numbers(f"cuMemRelease {handle}")[0] != 0
    assert client.left() == LIMIT


def test_created_memory_lives_while_it_is_mapped(t4: SimBox, client: Client) -> None:
    address = client.made(f"cuMemAddressReserve & {LIMIT} 0 0 0")
    handles = [client.made(f"cuMemCreate & {LIMIT // 2} {ON_CARD} 0") for _ in range(2)]
    for number, handle in enumerate(handles):
        client.does(f"cuMemMap {address + number * LIMIT // 2} {LIMIT // 2} 0 {handle} 0")
        client.does(f"cuMemRelease {handle}")
    assert (client.left(), t4.held()) == (0, LIMIT)
    client.does(f"cuMemUnmap {address} {LIMIT}")  # both at once
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_created_memory_lives_while_its_handle_is_retained(t4: SimBox, client: Client) -> None:
    address = client.made(f"cuMemAddressReserve & {LIMIT} 0 0 0")
    handle = client.made(f"cuMemCreate & {LIMIT} {ON_CARD} 0")
    client.does(f"cuMemMap {address} {LIMIT} 0 {handle} 0")
    assert client.made(f"cuMemRetainAllocationHandle & {address}") == handle
    client.does(f"cuMemRelease {handle}")
    client.does(f"cuMemUnmap {address} {LIMIT}")
    assert (client.left(), t4.held()) == (0, LIMIT)
    client.does(f"cuMemRelease {handle}")
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_a_map_or_release_that_fails_changes_nothing(client: Client) -> None:
    handle = client.made(f"cuMemCreate & {2 * MIB} {ON_CARD} 0")
    assert client.numbers(f"cuMemMap 4096 {2 * MIB} 0 {handle} 0")[0] != 0
    assert client.numbers("cuMemRelease 12345")[0] != 0
    assert client.left() == LIMIT - 2 * MIB
    client.does(f"cuMemRelease {handle}")
    assert client.left() == LIMIT


def test_memory_imported_from_a_handle_is_not_charged_twice(t4: SimBox, client: Client) -> None:
    handle = client.made(f"cuMemCreate & {LIMIT // 2} {ON_CARD} 0")
    file = client.made(f"cuMemExportToShareableHandle & {handle} 1 0") & 0xFFFFFFFF
    imported = client.made(f"cuMemImportFromShareableHandle & {file} 1")
    assert (client.left(), t4.held()) == (LIMIT // 2, LIMIT // 2)
    client.does(f"cuMemRelease {imported}")
    client.does(f"cuMemRelease {handle}")
    client.ask(f"python os.close({file})")
    assert client.left() == LIMIT


def test_created_memory_is_charged_to_the_card_it_names(sim_box: Callable[..., SimBox]) -> None:
    box = sim_box("a100x2")
    cards = [limits.CardLimit(card["uuid"], LIMIT) for card in box.cards()]
    (box.path / "limits").write_bytes(limits.encode("box", cards))
    client = box.caller(device=0)
    second = ON_CARD.replace("i:1,i:0,q", "i:1,i:1,q")
    client.made(f"cuMemCreate & {LIMIT} {second} 0")
    assert client.left() == LIMIT
    assert client.numbers(f"cuMemCreate & {2 * MIB} {second} 0")[0] == OUT_OF_MEMORY
    assert [box.held(0), box.held(1)] == [0, LIMIT]


# Arrays


@pytest.mark.parametrize(
    ("call", "size"),
    [
        (f"cuArrayCreate_v2 & {{Q:1024,Q:512,i:{FLOAT},i:4}}", 1024 * 512 * 16),
        (f"cuArray3DCreate_v2 & {{Q:256,Q:256,Q:16,i:{FLOAT},i:2,i:0}}", 256 * 256 * 16 * 8),
        (f"cuArray3DCreate_v2 & {{Q:256,Q:256,Q:6,i:{FLOAT},i:1,i:{LAYERED}}}", 256 * 256 * 6 * 4),
        (f"cuArray3DCreate_v2 & {{Q:65536,Q:0,Q:0,i:{FLOAT},i:4,i:0}}", 65536 * 16),
        (f"cuMipmappedArrayCreate & {{Q:512,Q:512,Q:0,i:{FLOAT},i:4,i:0}} 2", (512 * 512 + 256 * 256) * 16),
        (f"cuMipmappedArrayCreate & {{Q:512,Q:512,Q:8,i:{FLOAT},i:4,i:0}} 2", (512 * 512 * 8 + 256 * 256 * 4) * 16),
    ],
)
def test_arrays_are_charged_their_elements(t4: SimBox, client: Client, call: str, size: int) -> None:
    handle = client.made(call)
    assert client.left() == LIMIT - size
    destroy = "cuMipmappedArrayDestroy" if "Mipmapped" in call else "cuArrayDestroy"
    client.does(f"{destroy} {handle}")
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_an_array_beyond_the_limit_is_refused(t4: SimBox, client: Client) -> None:
    assert client.numbers(f"cuArrayCreate_v2 & {{Q:32768,Q:32768,i:{FLOAT},i:4}}")[0] == OUT_OF_MEMORY
    huge = (1 << 63) + 1
    assert client.numbers(f"cuArray3DCreate_v2 & {{Q:{huge},Q:{huge},Q:4,i:{FLOAT},i:4,i:0}}")[0] == OUT_OF_MEMORY
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_arrays_go_with_their_context(t4: SimBox, client: Client) -> None:
    client.made(f"cuArrayCreate_v2 & {{Q:1024,Q:1024,i:{FLOAT},i:4}}")
    client.does("cuDevicePrimaryCtxReset_v2 0")
    assert t4.usage() == (1, 0, 0)


# Pools


def test_a_pool_is_charged_the_memory_that_it_keeps(t4: SimBox, client: Client) -> None:
    pool = client.made(f"cuMemPoolCreate & {POOL}")
    client.does(f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{(1 << 64) - 1}}}")
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT // 2} {pool} 0")
    client.does(f"cuMemFreeAsync {pointer} 0")
    client.does("cuCtxSynchronize")
    assert t4.usage()[2] == t4.held()
    client.does(f"cuMemPoolTrimTo {pool} 0")
    assert (client.left(), t4.held()) == (LIMIT, 0)


def test_memory_that_a_pool_keeps_blocks_no_allocation(t4: SimBox, client: Client) -> None:
    pool = client.made(f"cuMemPoolCreate & {POOL}")
    client.does(f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{(1 << 64) - 1}}}")
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT} {pool} 0")
    client.does(f"cuMemFreeAsync {pointer} 0")
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT} {pool} 0")  # from the memory that it kept
    assert client.numbers(f"cuMemAllocFromPoolAsync & {2 * MIB} {pool} 0")[0] == OUT_OF_MEMORY
    client.does(f"cuMemFreeAsync {pointer} 0")
    client.does("cuCtxSynchronize")
    client.made(f"cuMemAlloc_v2 & {LIMIT}")
    assert t4.held() == LIMIT


def test_a_destroyed_pool_gives_back(t4: SimBox, client: Client) -> None:
    pool = client.made(f"cuMemPoolCreate & {POOL}")
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT // 4} {pool} 0")
    client.does(f"cuMemFreeAsync {pointer} 0")
    client.does("cuCtxSynchronize")
    client.does(f"cuMemPoolDestroy {pool}")
    assert (client.left(), t4.held(), t4.usage()) == (LIMIT, 0, (1, 0, 0))


def test_a_pool_destroyed_while_its_memory_is_in_use_stays_charged(t4: SimBox, client: Client) -> None:
    pool = client.made(f"cuMemPoolCreate & {POOL}")
    client.does(f"cuDeviceSetMemPool 0 {pool}")
    pointer = client.made(f"cuMemAllocFromPoolAsync & {LIMIT} {pool} 0")
    client.does(f"cuMemPoolDestroy {pool}")
    assert client.numbers(f"cuMemAlloc_v2 & {2 * MIB}")[0] == OUT_OF_MEMORY
    assert client.numbers("cuDeviceGetMemPool & 0")[1] == client.numbers("cuDeviceGetDefaultMemPool & 0")[1]
    client.does(f"cuMemFreeAsync {pointer} 0")
    client.does("cuCtxSynchronize")
    assert (client.left(), t4.held(), t4.usage()) == (LIMIT, 0, (1, 0, 0))
    assert client.numbers(f"cuMemPoolTrimTo {pool} 0")[0] != 0  # it has gone


# Graphs

ALLOCATION = "{i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,Q:0,Q:0,Q:%d,Q:0}"


def graph_exec(client: Client, size: int) -> int:
    """An instantiated graph that allocates `size` bytes and does not free them; or the negated CUresult."""
    graph = client.made("cuGraphCreate & 0")
    client.made(f"cuGraphAddMemAllocNode & {graph} 0 0 {ALLOCATION % size}")
    result, handle = client.numbers(f"cuGraphInstantiateWithFlags & {graph} 0")
    return -result if result else handle


def test_graph_memory_is_charged_when_the_graph_runs(t4: SimBox, client: Client) -> None:
    executable = graph_exec(client, LIMIT // 2)
    client.does(f"cuGraphLaunch {executable} 0")
    client.does("cuCtxSynchronize")
    assert t4.usage()[2] == t4.held() == LIMIT // 2
    assert client.left() == LIMIT // 2


def test_graph_memory_beyond_the_limit_is_refused(t4: SimBox, client: Client) -> None:
    pointer = client.made(f"cuMemAlloc_v2 & {LIMIT // 2}")
    executable = graph_exec(client, LIMIT)
    if executable > 0:
        assert client.numbers(f"cuGraphLaunch {executable} 0")[0] == OUT_OF_MEMORY
    else:
        assert executable == -OUT_OF_MEMORY
    assert t4.held() == LIMIT // 2
    client.does(f"cuMemFree_v2 {pointer}")
    assert client.left() == LIMIT


# Between processes and threads


def test_memory_opened_by_ipc_is_not_charged_twice(t4: SimBox, client: Client) -> None:
    other = t4.caller()
    pointer = client.made(f"cuMemAlloc_v2 & {LIMIT // 2}")
    result, handle = client.ask(f"export {pointer}")
    assert result == "0"
    opened = other.made(f"open {handle}")
    assert other.left() == LIMIT // 2
    other.does(f"cuIpcCloseMemHandle {opened}")
    assert (client.left(), t4.usage()[2]) == (LIMIT // 2, LIMIT // 2)


def test_another_thread_frees(t4: SimBox, client: Client) -> None:
    pointer = client.made(f"cuMemAlloc_v2 & {LIMIT}")
    handle = client.numbers(f"thread cuMemCreate & {2 * MIB} {ON_CARD} 0")[0]
    assert handle == OUT_OF_MEMORY
    client.does(f"thread cuMemFree_v2 {pointer}")
    assert (client.left(), t4.usage()) == (LIMIT, (1, 0, 0))


def test_a_killed_process_gives_back_every_kind(t4: SimBox, client: Client) -> None:
    client.made(f"cuMemCreate & {64 * MIB} {ON_CARD} 0")
    client.made(f"cuArrayCreate_v2 & {{Q:1024,Q:1024,i:{FLOAT},i:4}}")
    client.made(f"cuMemAllocAsync & {64 * MIB} 0")
    client.does(f"cuGraphLaunch {graph_exec(client, 64 * MIB)} 0")
    assert t4.usage()[2] == t4.held() > 192 * MIB
    client.kill()
    assert t4.caller().left() == LIMIT
    assert t4.held() == 0


# The driver's own memory


def test_a_context_is_charged(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    first = t4_nvml.caller()
    context = t4_nvml.context
    assert context > 0
    assert first.left() == LIMIT - context
    second = t4_nvml.caller()
    assert (first.left(), second.left()) == (LIMIT - 2 * context,) * 2
    first.does("cuDevicePrimaryCtxRelease_v2 0")
    assert second.left() == LIMIT - context
    assert second.numbers(f"cuMemAlloc_v2 & {LIMIT - context + 1}")[0] == OUT_OF_MEMORY
    second.made(f"cuMemAlloc_v2 & {LIMIT - context}")


def test_a_context_for_which_there_is_no_room_is_refused(t4_nvml: SimBox) -> None:
    t4_nvml.limit(t4_nvml.context + MIB)
    t4_nvml.caller()
    client = t4_nvml.start(level="info")
    client.ask("init")
    assert client.numbers("open 0")[0] == OUT_OF_MEMORY
    share = t4_nvml.context + MIB
    assert f"there is no room left in the container's share of {share} bytes" in t4_nvml.log
    assert client.numbers("create 0")[0] == OUT_OF_MEMORY
    assert [process["context"] for process in t4_nvml.cards()[0]["processes"]] == [t4_nvml.context]
    assert t4_nvml.usage()[2] == t4_nvml.context


@pytest.mark.parametrize("call", ["open 0", "create 0"])
def test_a_share_that_is_smaller_than_a_context_is_named_with_both_figures_on_request(
    t4_nvml: SimBox, call: str
) -> None:
    context, share = t4_nvml.context, t4_nvml.context - MIB
    t4_nvml.limit(share)
    for level in ("error", "info"):
        client = t4_nvml.start(level=level)
        client.ask("init")
        assert t4_nvml.log == ""
        assert client.numbers(call)[0] == OUT_OF_MEMORY
    assert (
        f"a context on device 0 was refused: the driver takes {context} bytes for this process, "
        f"more than the container's whole share of {share} bytes\n"
    ) in t4_nvml.log
    head = (t4_nvml.path / "usage/usage").read_bytes()[: usage.CARDS_END]
    assert usage.contexts(head) == {t4_nvml.uuid: context}, "for the host, though the program got none"


NVML_IS_LOADED = "open('/proc/self/maps').read().count('/vcuda/libnvidia-ml.so.1') > 0"


def test_with_room_for_any_context_nvml_is_not_loaded_and_contexts_count_all_the_same(t4_nvml: SimBox) -> None:
    limit = 8 * GIB
    t4_nvml.limit(limit)
    idle, client = t4_nvml.caller(), t4_nvml.caller()
    client.made(f"cuMemAlloc_v2 & {MIB}")
    assert [one.ask(f"python {NVML_IS_LOADED}") for one in (idle, client)] == [["False"], ["False"]]
    assert t4_nvml.usage()[2] == MIB
    rest = limit - 2 * t4_nvml.context - MIB
    assert client.numbers(f"cuMemAlloc_v2 & {rest + 1}")[0] == OUT_OF_MEMORY
    client.made(f"cuMemAlloc_v2 & {rest}")
    assert t4_nvml.usage()[2] == limit - t4_nvml.context  # one has looked, for both
    assert (idle.left(), client.left()) == (0, 0)
    assert t4_nvml.usage()[2] == limit
    idle.kill()
    assert client.left() == t4_nvml.context


TOTAL = """(lambda nvml, card, memory: (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)),
nvml.nvmlDeviceGetMemoryInfo(card, memory)) and struct.unpack('@3Q', memory.raw)[0])(
ctypes.CDLL('libnvidia-ml.so.1'), ctypes.c_void_p(), ctypes.create_string_buffer(24))""".replace("\n", " ")


def test_libvcudas_nvml_comes_first_for_a_program_that_looks_for_it_later(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    client = t4_nvml.caller()
    client.left()
    assert client.ask(f"python {NVML_IS_LOADED}") == ["True"]  # the question needed it
    assert client.ask(f"python {TOTAL}") == [str(LIMIT)]

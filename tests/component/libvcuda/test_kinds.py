"""libvcuda charges each kind of device memory the card's bytes and releases the charge, on the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vgpu.config import usage

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = GIB
POOL = "{i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}"  # CUmemPoolProps
FLOAT = 0x20


@pytest.fixture
def client(t4: SimBox) -> Client:
    t4.limit(LIMIT)
    return t4.caller()


# Arrays


def test_an_array_beyond_the_limit_is_refused(t4: SimBox, client: Client) -> None:
    assert client.numbers(f"cuArrayCreate_v2 & {{Q:32768,Q:32768,i:{FLOAT},i:4}}")[0] == OUT_OF_MEMORY
    huge = (1 << 63) + 1
    assert client.numbers(f"cuArray3DCreate_v2 & {{Q:{huge},Q:{huge},Q:4,i:{FLOAT},i:4,i:0}}")[0] == OUT_OF_MEMORY
    assert (client.left(), t4.held()) == (LIMIT, 0)


# Pools


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
    assert client.numbers("thread cuMemFree_v2 4096")[0] != 0
    rest = limit - 2 * t4_nvml.context - MIB
    assert client.numbers(f"cuMemAlloc_v2 & {rest + 1}")[0] == OUT_OF_MEMORY
    client.made(f"cuMemAlloc_v2 & {rest}")
    assert t4_nvml.usage()[2] == limit - t4_nvml.context  # one has looked, for both
    head = (t4_nvml.path / "usage/usage").read_bytes()[: usage.CARDS_END]
    assert usage.contexts(head) == {t4_nvml.uuid: t4_nvml.context}, "no thread is in a call, so the figure is exact"
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

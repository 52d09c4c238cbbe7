"""The memory limit on a real card: each kind of allocation is charged, refused above the limit, and released.

A real driver pads blocks, pools and arrays, so the bounds allow for PADDING. Exact figures are tested on the simulator.
"""

from __future__ import annotations

from typing import Any

import pytest

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = 4 * GIB
PADDING = 64 * MIB  # of blocks, pools and arrays, on the cards measured so far
ON_CARD = "{i:1,i:1,i:1,i:0,q:0,q:0}"
ALLOCATION = "{i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,Q:0,Q:0,Q:%d,Q:0}"
FLOAT = 0x20


@pytest.fixture
def client(gpu: Any) -> Any:
    gpu.limit(LIMIT)
    return gpu.caller()


def test_the_limit_is_what_a_program_is_told(gpu: Any, client: Any) -> None:
    result, available, total = client.numbers("cuMemGetInfo_v2 & &")
    assert (result, total) == (0, LIMIT)
    assert 0 < available < LIMIT
    assert client.numbers("cuDeviceTotalMem_v2 & 0") == (0, LIMIT)


def test_the_context_is_charged_as_nvml_says(gpu: Any, client: Any, card: dict[str, Any]) -> None:
    import pynvml  # type: ignore[import-untyped]

    used = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(card["handle"])}
    pid = int(client.ask("python os.getpid()")[0])
    if pid not in used:
        pytest.skip("this driver's NVML does not list this process under its own pid")
    assert client.left() == LIMIT - used[pid]


@pytest.mark.parametrize(
    ("allocate", "free"),
    [
        ("cuMemAlloc_v2 & {size}", "cuMemFree_v2 {handle}"),
        ("cuMemAllocManaged & {size} 1", "cuMemFree_v2 {handle}"),
        ("cuMemAllocAsync & {size} 0", "cuMemFreeAsync {handle} 0"),
        (f"cuMemCreate & {{size}} {ON_CARD} 0", "cuMemRelease {handle}"),
    ],
)
def test_each_kind_is_charged_refused_and_given_back(client: Any, allocate: str, free: str) -> None:
    before = client.left()
    handle = client.made(allocate.replace("{size}", str(GIB)))
    assert before - GIB - PADDING <= client.left() <= before - GIB
    assert client.numbers(allocate.replace("{size}", str(LIMIT - GIB)))[0] == OUT_OF_MEMORY
    client.does(free.replace("{handle}", str(handle)))
    client.does("cuCtxSynchronize")
    assert client.left() >= before - PADDING


def test_arrays(client: Any) -> None:
    before = client.left()
    array = client.made(f"cuArray3DCreate_v2 & {{Q:512,Q:512,Q:64,i:{FLOAT},i:4,i:0}}")
    assert before - 256 * MIB - PADDING <= client.left() <= before - 256 * MIB
    assert client.numbers(f"cuArray3DCreate_v2 & {{Q:2048,Q:2048,Q:128,i:{FLOAT},i:4,i:0}}")[0] == OUT_OF_MEMORY
    client.does(f"cuArrayDestroy {array}")
    assert client.left() >= before - PADDING


def test_graph_memory(client: Any) -> None:
    before = client.left()
    graph = client.made("cuGraphCreate & 0")
    client.made(f"cuGraphAddMemAllocNode & {graph} 0 0 {ALLOCATION % GIB}")
    executable = client.made(f"cuGraphInstantiateWithFlags & {graph} 0")
    client.does(f"cuGraphLaunch {executable} 0")
    client.does("cuCtxSynchronize")
    assert before - GIB - PADDING <= client.left() <= before - GIB


def test_two_processes_share_the_limit_and_a_killed_one_gives_back(gpu: Any, client: Any) -> None:
    other = gpu.caller()
    before = other.left()
    client.made(f"cuMemAlloc_v2 & {GIB}")
    assert other.left() == before - GIB
    client.kill()
    assert other.left() > before


def test_virtual_addresses_outlive_their_handle(client: Any) -> None:
    before = client.left()
    address = client.made(f"cuMemAddressReserve & {GIB} 0 0 0")
    handle = client.made(f"cuMemCreate & {GIB} {ON_CARD} 0")
    client.does(f"cuMemMap {address} {GIB} 0 {handle} 0")
    client.does(f"cuMemRelease {handle}")
    assert client.left() <= before - GIB
    client.does(f"cuMemUnmap {address} {GIB}")
    assert client.left() >= before - PADDING


def test_a_live_change_counts_at_once(gpu: Any, client: Any) -> None:
    client.made(f"cuMemAlloc_v2 & {GIB}")
    gpu.limit(GIB)
    assert client.left() == 0
    assert client.numbers("cuMemAlloc_v2 & 1")[0] == OUT_OF_MEMORY
    gpu.limit(LIMIT)
    client.made(f"cuMemAlloc_v2 & {GIB}")

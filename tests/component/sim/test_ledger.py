"""The ledger of memory, which other tests take for the truth: what things cost, and that the dead hold nothing."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from typing import Any

import pytest
from sharing_containers import F_OFD_SETLK, FLOCK

MIB = 1 << 20
INVALID_VALUE, OUT_OF_MEMORY, NO_BINARY, NOT_FOUND, NOT_READY = 1, 2, 209, 500, 600
PHYSICAL = "{i:1,i:1,i:1,i:0,q:0,q:0}"
POOL = "{i:1,i:0,i:1,i:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0,q:0}"
RELEASE_THRESHOLD = 4
PTX = b".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry kernel() { ret; }\n"
CHURN = (
    "python [call(['cuMemFree_v2', str(call(['cuMemAlloc_v2', '&', '1048576'])[1])]) for _ in iter(int, 1)]"  # for ever
)
NVML_PIDS = """
import json, pynvml
pynvml.nvmlInit()
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
print(json.dumps([process.pid for process in processes]))
"""
CHILD = "python os.fork() or __import__('signal').pause()"  #: it keeps all descriptors


def given(client: Any, content: bytes) -> int:
    """The address of these bytes in the client, which keeps them."""
    keep = "(lambda text: globals().setdefault('kept', []).append(text) or ctypes.addressof(text))"
    return int(client.ask(f"python {keep}(ctypes.create_string_buffer({content!r}))")[0])


def test_sizes_are_rounded_up(node: Any) -> None:
    client = node.opened()
    pointer = client.made("cuMemAlloc_v2 & 5")
    assert node.held() == 512
    client.does(f"cuMemFree_v2 {pointer}")
    assert client.numbers(f"cuMemFree_v2 {pointer}")[0] == INVALID_VALUE
    assert client.made(f"cuMemGetAllocationGranularity & {PHYSICAL} 0") == 2 * MIB
    assert client.numbers(f"cuMemCreate & 3 {PHYSICAL} 0")[0] == INVALID_VALUE
    client.made(f"cuModuleLoadData & {given(client, PTX)}")
    assert node.held() == 64 << 10


def test_a_module_costs_the_code_for_the_cards_architecture(node: Any) -> None:
    client = node.opened()
    elf, ptx, compressed, unit = 2, 1, 1, 65536

    def load(*entries: tuple[int, int, int, int]) -> tuple[int, int]:
        """(CUresult, units of memory) of entries (kind, architecture, bytes in the file, bytes on the card)."""
        content = b"".join(
            struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, size, compressed, 0, 0, 0, architecture, 0, 0, 0, 0, loaded)
            + bytes(size)
            for kind, architecture, size, loaded in entries
        )
        fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content
        before = node.held()
        result, module = client.numbers(f"cuModuleLoadData & {given(client, fat)}")
        units = (node.held() - before) // unit
        if result == 0:
            client.does(f"cuModuleUnload {module}")
        return result, units

    assert load((elf, 70, 8, unit), (elf, 75, 8, 3 * unit), (elf, 80, 8, 9 * unit), (ptx, 75, 8, 20 * unit)) == (0, 3)
    assert load((elf, 70, 8, 2 * unit), (elf, 80, 8, 9 * unit)) == (0, 2)
    assert load((elf, 60, 8, 2 * unit), (ptx, 60, 8, 4 * unit), (ptx, 80, 8, 9 * unit)) == (0, 4)
    assert load((elf, 60, 8, unit), (elf, 80, 8, unit), (ptx, 80, 8, unit)) == (NO_BINARY, 0)


def test_the_linker_joins_its_inputs(node: Any) -> None:
    client = node.opened()
    link = client.made("cuLinkCreate_v2 0 0 0 &")
    assert client.numbers(f"cuLinkComplete {link} & &")[0] == INVALID_VALUE
    for name in (b"first", b"second"):
        text = PTX.replace(b"kernel", name) + b"\0"
        client.does(f"cuLinkAddData_v2 {link} 1 {given(client, text)} {len(text)} 0 0 0 0")
    module = client.made(f"cuModuleLoadData & {client.made(f'cuLinkComplete {link} & &')}")
    client.does(f"cuLinkDestroy {link}")
    found = (client.numbers(f"cuModuleGetFunction & {module} {given(client, name)}") for name in (b"first", b"second"))
    assert [result for result, _ in found] == [0, 0]
    assert client.numbers(f"cuModuleGetFunction & {module} {given(client, b'kernel')}")[0] == NOT_FOUND


def test_a_process_pays_for_one_context(node: Any) -> None:
    client = node.opened()
    second = client.made("cuCtxCreate_v2 & 0 0")
    assert node.card()["used"] == node.card()["context_overhead"]
    client.does(f"cuCtxDestroy_v2 {second}")
    client.does("cuDevicePrimaryCtxRelease_v2 0")
    assert node.card()["used"] == 0


def test_a_pool_keeps_as_much_as_it_is_told_to(node: Any) -> None:
    client = node.opened()
    pool = client.made(f"cuMemPoolCreate & {POOL}")
    client.does(f"cuMemPoolSetAttribute {pool} {RELEASE_THRESHOLD} {{Q:{MIB}}}")
    for pointer in [client.made(f"cuMemAllocFromPoolAsync & {MIB} {pool} 0") for _ in range(2)]:
        client.does(f"cuMemFreeAsync {pointer} 0")
    assert node.held() == MIB
    client.made(f"cuMemAllocFromPoolAsync & {MIB} {pool} 0")
    assert node.held() == MIB


def test_a_graphs_memory_serves_again_until_it_is_trimmed(node: Any) -> None:
    client = node.opened()
    stream = client.made("cuStreamCreate & 1")
    client.does(f"cuStreamBeginCapture_v2 {stream} 0")
    pointer = client.made(f"cuMemAllocAsync & {4 * MIB} {stream}")
    client.does(f"cuMemFreeAsync {pointer} {stream}")
    graph = client.made(f"cuStreamEndCapture {stream} &")
    launched = client.made(f"cuGraphInstantiateWithFlags & {graph} 0")
    for _ in range(2):
        client.does(f"cuGraphLaunch {launched} {stream}")
        client.does(f"cuStreamSynchronize {stream}")
        assert node.held() == 4 * MIB
    client.does("cuDeviceGraphMemTrim 0")
    assert node.held() == 0


#: What the option makes a call take, in MiB. test_measured_profiles.py has the others.
TAKES = [
    ("block_bytes", 2 * MIB, "cuMemAlloc_v2 & 1100000", 2),
    ("block_bytes", 2 * MIB, f"cuMemAlloc_v2 & {3 * MIB // 4}", 2),
    ("block_bytes", 2 * MIB, f"cuMemAlloc_v2 & {2 * MIB + 1}", 4),
    ("stacks", 1, f"cuCtxSetLimit 0 {64 << 10}", 2520),  # 40 SMs of 1,024 threads, beyond 1 KiB
]


@pytest.mark.parametrize(("option", "value", "line", "mib"), TAKES)
def test_a_profile_says_what_a_driver_takes(
    make_node: Any, simctl: Any, option: str, value: int, line: str, mib: int
) -> None:
    client = (node := make_node({**simctl.load_profile("t4x1"), "memory": {option: value}})).opened()
    before = node.card()["used"]
    client.does(line)
    assert (node.card()["used"] - before) / MIB == mib


def test_an_option_that_no_driver_has_is_an_error(make_node: Any, simctl: Any) -> None:
    with pytest.raises(simctl.SimError, match="memory: unknown blocks"):
        make_node({**simctl.load_profile("t4x1"), "memory": {"blocks": 1}})


def test_a_stream_waits_for_a_value(node: Any) -> None:
    """Tests of libvcuda close such a gate, so that what a stream is to take or to free is still to come."""
    client = node.opened()
    word = client.made("cuMemHostAlloc & 4096 0")
    stream = client.made("cuStreamCreate & 1")
    client.does(f"cuStreamWaitValue32_v2 {stream} {word} 1 0")
    assert client.numbers(f"cuStreamQuery {stream}") == (NOT_READY,)
    client.ask(f"python ctypes.memset({word},1,1)")
    client.does(f"cuStreamSynchronize {stream}")


def test_memory_of_another_process_goes_with_its_last_holder(node: Any) -> None:
    owner, importer = node.opened(), node.opened()
    pointer = owner.made(f"cuMemAlloc_v2 & {4 * MIB}")
    handle = owner.ask(f"export {pointer}")[1]
    opened = importer.made(f"open {handle}")
    owner.does(f"cuMemFree_v2 {pointer}")
    assert node.held() == 4 * MIB
    assert importer.left() == node.card()["free"]
    importer.does(f"cuIpcCloseMemHandle {opened}")
    assert node.held() == 0


def test_out_of_memory_is_exact_across_processes(node: Any) -> None:
    first, second = node.opened(), node.opened()
    left = node.card()["free"]
    half = left // 2 // 512 * 512
    first.made(f"cuMemAlloc_v2 & {half}")
    assert second.numbers(f"cuMemAlloc_v2 & {left - half + 512}")[0] == OUT_OF_MEMORY
    second.made(f"cuMemAlloc_v2 & {left - half}")
    assert first.numbers("cuMemAlloc_v2 & 512")[0] == OUT_OF_MEMORY
    assert node.card()["free"] == 0


def test_the_dead_give_back(node: Any) -> None:
    victim, other = node.opened(), node.opened()
    victim.made(f"cuMemAlloc_v2 & {node.card()['free']}")
    assert other.numbers("cuMemAlloc_v2 & 512")[0] == OUT_OF_MEMORY
    victim.kill()
    other.made("cuMemAlloc_v2 & 512")
    assert [process["own_pid"] for process in node.card()["processes"]] == [other.process.pid]


def test_killed_at_any_point_leaves_the_ledger_usable(node: Any) -> None:
    """SIGKILL sometimes hits a process that has the lock. It must not stay locked, and no byte may be lost."""
    survivor = node.opened()
    for round_number in range(8):
        victim = node.opened()
        victim.send(CHURN)
        time.sleep(0.02 + 0.003 * round_number)
        victim.kill()
        survivor.made(f"cuMemAlloc_v2 & {MIB}")
    assert node.card()["used"] == node.card()["context_overhead"] + 8 * MIB


def test_a_forked_child_keeps_neither_its_dead_parent_alive_nor_its_lock(node: Any) -> None:
    """The parent is killed in the middle of its calls, which lock the file. The child still has its mapping."""
    for _ in range(10):
        client = node.opened()
        child = int(client.ask(CHILD)[0])
        try:
            client.send(CHURN)
            time.sleep(0.05)
            client.kill()
            with (node.directory / "cards").open("r+b") as cards:
                fcntl.fcntl(cards, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            assert node.card()["processes"] == []
        finally:
            os.kill(child, 9)


@pytest.mark.root
def test_pids_across_pid_namespaces(node: Any) -> None:
    """The kernel reports the host's pid of a process that is pid 1 in its namespace."""
    outside, inside = node.opened(), node.opened("unshare", "--pid", "--fork", "--kill-child")
    processes = node.card()["processes"]
    assert [process["own_pid"] for process in processes] == [outside.process.pid, 1]
    with open(f"/proc/{processes[1]['pid']}/cmdline") as file:
        assert "calls.py" in file.read()
    assert node.python(NVML_PIDS) == [process["pid"] for process in processes]
    inside.kill()

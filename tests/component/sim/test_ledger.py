"""Several processes on one card: the sum of their memory is exact, and dead processes' memory is freed."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from sharing_containers import F_OFD_SETLK, FLOCK

MIB = 1 << 20
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3


def test_two_processes_share_a_card(node: Any) -> None:
    first, second = node.client().start(), node.client().start()
    overhead = node.card()["context_overhead"]
    assert first("alloc", 100 * MIB)[0] == 0
    result, available, total = second("info")
    assert result == 0
    assert total == node.card()["capacity"]
    assert available == total - 2 * overhead - 100 * MIB
    used = {process["own_pid"]: process["allocated"] for process in node.card()["processes"]}
    assert used == {first.process.pid: 100 * MIB, second.process.pid: 0}


def test_out_of_memory_is_exact_across_processes(node: Any) -> None:
    first, second = node.client().start(), node.client().start()
    left = node.card()["free"]
    half = left // 2 // 512 * 512
    assert first("alloc", half)[0] == 0
    assert second("alloc", left - half + 512)[0] == OUT_OF_MEMORY
    assert second("alloc", left - half)[0] == 0
    assert first("alloc", 512)[0] == OUT_OF_MEMORY
    assert node.card()["free"] == 0


def test_a_context_needs_memory_too(node: Any) -> None:
    first = node.client().start()
    overhead = node.card()["context_overhead"]
    assert first("alloc", node.card()["free"] - overhead + 512)[0] == 0
    second = node.client()
    assert second("init") == 0
    assert second("context", 0) == OUT_OF_MEMORY
    assert [process["own_pid"] for process in node.card()["processes"]] == [first.process.pid]


def test_free_and_release_give_back(node: Any) -> None:
    client = node.client().start()
    pointer = client("alloc", 5)[1]
    assert node.card()["processes"][0]["allocated"] == 512
    assert client("free", pointer) == 0
    assert client("free", pointer) == 1
    assert client("alloc", 7 * MIB)[0] == 0
    assert client("release", 0) == 0
    assert node.card()["used"] == 0


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_the_dead_give_back(node: Any, signal_number: int) -> None:
    victim, other = node.client().start(), node.client().start()
    assert victim("alloc", node.card()["free"])[0] == 0
    assert other("alloc", 512)[0] == OUT_OF_MEMORY
    victim.process.send_signal(signal_number)
    victim.process.wait()
    assert other("alloc", 512)[0] == 0
    assert [process["own_pid"] for process in node.card()["processes"]] == [other.process.pid]


def test_a_race_never_exceeds_the_card(node: Any) -> None:
    clients = [node.client().start() for _ in range(4)]
    left = node.card()["free"]
    chunk = 3 * MIB
    for client in clients:
        client.send("fill", chunk)
    counts = [client.receive() for client in clients]
    assert sum(counts) == left // chunk
    assert node.card()["free"] == left % chunk


def test_killed_at_any_point_leaves_the_ledger_usable(node: Any) -> None:
    """SIGKILL sometimes hits a process that has the lock. It must not stay locked, and no byte may be lost."""
    survivor = node.client().start()
    for round_number in range(8):
        victim = node.client().start()
        victim.send("churn")
        time.sleep(0.02 + 0.003 * round_number)
        victim.kill()
        assert survivor("alloc", MIB)[0] == 0
    assert node.card()["used"] == node.card()["context_overhead"] + 8 * MIB


def test_a_forked_child_has_no_driver_and_keeps_no_memory(node: Any) -> None:
    client = node.client().start()
    assert client("alloc", MIB)[0] == 0
    assert client("fork_and_init") == [NOT_INITIALIZED, NOT_INITIALIZED]
    assert client("alloc", MIB)[0] == 0
    assert node.card()["processes"][0]["allocated"] == 2 * MIB


def test_a_forked_child_does_not_keep_its_dead_parent_alive(node: Any) -> None:
    client = node.client().start()
    child = client("fork_and_sleep")
    try:
        client.kill()
        assert node.card()["processes"] == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(node: Any) -> None:
    """The parent is killed in the middle of its calls, which lock the file. The child still has its mapping."""
    for _ in range(15):
        client = node.client().start()
        child = client("fork_and_sleep")
        try:
            client.send("churn")
            time.sleep(0.05)
            client.kill()
            with (node.directory / "cards").open("r+b") as cards:
                fcntl.fcntl(cards, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        finally:
            os.kill(child, signal.SIGKILL)


def test_every_card_has_its_own_figures(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2")
    client = node.client(CUDA_DEVICE_ORDER="PCI_BUS_ID").start(1)
    assert client("alloc", MIB)[0] == 0
    assert node.card(0)["used"] == 0
    assert node.card(1)["used"] == MIB + node.card(1)["context_overhead"]


def test_reading_in_the_same_process_keeps_the_slot(node: Any, simctl: ModuleType) -> None:
    """Closing the lock file would drop the locks of a libcuda in the same process, so the reader must not close it."""
    code = f"""
import ctypes, importlib.util, json
spec = importlib.util.spec_from_file_location("simctl", {simctl.__file__!r})
simctl = importlib.util.module_from_spec(spec)
spec.loader.exec_module(simctl)
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(json.dumps([len(simctl.read_state({str(node.directory)!r})["cards"][0]["processes"]) for _ in range(3)]))
"""
    assert node.python(code) == [1, 1, 1]


@pytest.mark.root
def test_pids_across_pid_namespaces(node: Any) -> None:
    """The kernel reports the host's pid of a process that is pid 1 or 2 in its namespace."""
    outside = node.client().start()
    inside = node.client("unshare", "--pid", "--fork", "--kill-child").start()
    processes = node.card()["processes"]
    assert [process["own_pid"] for process in processes] == [outside.process.pid, 1]
    with open(f"/proc/{processes[1]['pid']}/cmdline") as file:
        assert "cuda_client.py" in file.read()
    assert inside("alloc", MIB)[0] == 0
    os.kill(processes[1]["pid"], signal.SIGKILL)
    inside.process.wait()
    assert len(node.card()["processes"]) == 1

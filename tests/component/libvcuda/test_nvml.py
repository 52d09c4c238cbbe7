"""NVML in a container that shares a card: it shows the container's own processes and their use, and no others."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest
from checkout import BUILD, DATA
from virtual_director import MS

if TYPE_CHECKING:
    from sharing_containers import Node
    from vcuda_boxes import Client, SimBox

MIB = 1 << 20
GIB = 1 << 30
BURN = DATA / "cuda/burn.py"
SMI = BUILD / "bin/sim/nvidia-smi"
QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
PERIOD = 166_667_000  #: ns of the simulator's samples
SEED = int(os.environ.get("VGPU_SEED") or random.randrange(1 << 30))
LISTS = ("Compute", "Graphics", "MPSCompute")

SCRIPT = """
import json, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
def answer(function, *arguments):
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return str(error)
def processes(name):
    found = answer(getattr(pynvml, "nvmlDeviceGet" + name + "RunningProcesses"), card)
    return found if isinstance(found, str) else [[one.pid, one.usedGpuMemory] for one in found]
rates = answer(pynvml.nvmlDeviceGetUtilizationRates, card)
samples = answer(pynvml.nvmlDeviceGetProcessUtilization, card, 0)

print(json.dumps({
    **{name: processes(name) for name in LISTS},
    "rates": rates if isinstance(rates, str) else [rates.gpu, rates.memory],
    "samples": samples if isinstance(samples, str) else [[one.pid, one.smUtil] for one in samples],
    "accounting": answer(pynvml.nvmlDeviceGetAccountingPids, card),
    "count": pynvml.nvmlDeviceGetCount(),
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "missing": answer(pynvml.nvmlDeviceGetHostVgpuMode, card),
}))
""".replace("LISTS", repr(LISTS))


def answers(box: SimBox) -> dict[str, Any]:
    """The answers that nvidia-ml-py gets in the box."""
    command = box.command(sys.executable, "-c", SCRIPT)
    done = subprocess.run(command, env=box.environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def answers_in_use(box: SimBox) -> dict[str, Any]:
    """The same, as soon as NVML's samples, which lag, show that the card is in use."""
    for _ in range(100):
        seen = answers(box)
        if not isinstance(seen["samples"], str) and seen["samples"] and seen["rates"][0] > 0:
            return seen
        time.sleep(0.1)
    raise AssertionError(f"the card was never seen in use: {seen}")


@pytest.fixture
def shared(sim_box: Callable[..., SimBox]) -> tuple[SimBox, SimBox]:
    """Two containers on one card; the second has a process with a GiB there."""
    first, second = sim_box("t4x1", nvml=True), sim_box("t4x1", nvml=True)
    first.limit(4 * GIB)
    second.limit(4 * GIB)
    second.opened().alloc(GIB)
    return first, second


def test_lists_show_the_containers_own_processes_with_what_they_hold(shared: tuple[SimBox, SimBox]) -> None:
    first, second = shared
    assert answers(first)["Compute"] == []
    client = first.opened()
    client.alloc(3 * MIB)
    seen = answers(first)
    assert seen["Compute"] == [[client.process.pid, first.context + 3 * MIB]]
    assert (seen["Graphics"], seen["MPSCompute"]) == ([], [])
    assert answers(second)["Compute"] == [[second.clients[0].process.pid, second.context + GIB]]


def test_without_a_share_the_driver_answers(sim_box: Callable[..., SimBox]) -> None:
    box = sim_box("t4x1", nvml=True)
    client = box.opened()
    assert [pid for pid, _ in answers(box)["Compute"]] == [client.process.pid]


def test_a_process_that_a_tenant_only_claims_is_not_shown(shared: tuple[SimBox, SimBox]) -> None:
    """A tenant can write its region, but libvcuda asks the kernel which processes exist. This one has ended."""
    first, _ = shared
    client = first.opened()
    file = first.path / "usage/usage"
    listed_before = answers(first)["Compute"]
    client.kill()
    assert listed_before and file.exists()
    assert answers(first)["Compute"] == []


def test_ways_to_see_neighbours_are_closed(shared: tuple[SimBox, SimBox]) -> None:
    first, second = shared
    neighbours = {client.process.pid for client in second.clients}
    seen = answers(first)
    assert "Not Supported" in str(seen["accounting"]) or "Not Found" in str(seen["accounting"])
    assert isinstance(seen["samples"], str) or not neighbours & {pid for pid, _ in seen["samples"]}
    assert isinstance(seen["rates"], str) or all(0 <= figure <= 100 for figure in seen["rates"])


@pytest.mark.parametrize("pids", [False, True])
def test_use_is_the_containers_own(sim_box: Callable[..., SimBox], pids: bool) -> None:
    """A neighbour that keeps the card busy appears in its own container and in no other, also where both have its pid.

    A driver that gives all containers the host's pids does not say whose use it is.
    """
    idle, busy = (sim_box("t4x1", nvml=True, pids=pids) for _ in range(2))
    idle.limit(4 * GIB)
    busy.limit(4 * GIB)
    idle.opened()
    burning = subprocess.Popen(
        busy.command(sys.executable, "-S", str(BURN), "600"), env=busy.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert burning.stdout and burning.stdout.readline() == "ready\n"
        seen, neighbour = answers_in_use(busy), answers(idle)
        (listed,) = [pid for pid, _ in seen["Compute"]]
        assert [pid for pid, _ in seen["samples"]] == [listed] * len(seen["samples"])
        assert ([pid for pid, _ in neighbour["Compute"]] == [listed]) == pids
        assert (neighbour["rates"], neighbour["samples"]) == ([0, 0], "Not Found")
        for box in (idle, busy) if pids else ():
            box.environment["VGPU_SIM_PIDS"] = "host"
            of_host = answers(box)
            assert (of_host["rates"], of_host["samples"]) == ("Not Supported",) * 2
    finally:
        program = Path(f"/proc/{burning.pid}/task/{burning.pid}/children").read_text().split() or [str(burning.pid)]
        os.kill(int(program[0]), signal.SIGKILL)
        burning.communicate()


@pytest.mark.parametrize("number", range(2))
def test_utilization_is_the_part_of_the_card_that_the_container_used(node: Node, number: int) -> None:
    """By the simulator's ledger, in a container of 30 % with random work and a busy neighbour.

    Samples are late, so what NVML and nvidia-smi show is of the sixth period before.
    """
    chance = random.Random(f"{SEED}-{number}")
    ours, other = node.share_out(30, 70, nvml=True)
    other.flood()
    kernel = f"lognormal:{chance.randrange(100_000, 2 * MS)}:{chance.randrange(100, 1000)}:{10 * MS}"
    gap = chance.choice((0, chance.randrange(4 * MS)))
    ours.flood(kernel=kernel, gap=gap, wait="stream", seed=chance.randrange(99))
    node.director.run(12 * PERIOD - node.director.now % PERIOD)
    truth, shown = [], []
    for _ in range(24):
        before = ours.busy()
        node.director.run(PERIOD - node.director.now % PERIOD)
        truth.append((ours.busy() - before) * 100 / PERIOD)
        seen = answers(ours.box)
        smi = subprocess.check_output(ours.box.command(str(SMI), *QUERY), env=ours.box.environment)
        assert seen["samples"] == [[seen["Compute"][0][0], int(smi)]]
        assert seen["rates"][0] == int(smi)
        shown.append(int(smi))
    assert shown[5:] == [int(percent) for percent in truth[:-5]], SEED


def test_the_rest_is_the_drivers(shared: tuple[SimBox, SimBox]) -> None:
    seen = answers(shared[0])
    assert (seen["count"], seen["driver"]) == (1, "550.54.15")
    assert seen["missing"] in ("Not Supported", "Function Not Found")


PROCESS_CALLS = {
    **{
        f"nvmlDeviceGet{kind}RunningProcesses{version}": "ctypes.byref(ctypes.c_uint(8)),(ctypes.c_char*4096)()"
        for kind in LISTS
        for version in ("", "_v2", "_v3")
    },
    "nvmlDeviceGetProcessUtilization": "(ctypes.c_char*4096)(),ctypes.byref(ctypes.c_uint(8)),ctypes.c_ulonglong(0)",
    "nvmlDeviceGetUtilizationRates": "(ctypes.c_char*64)()",
    "nvmlDeviceGetMemoryInfo": "(ctypes.c_char*64)()",
}
NVML = "ctypes.CDLL('libnvidia-ml.so.1')"
CARD = "globals().setdefault('card',ctypes.c_void_p())"
GPU_IS_LOST, UNINITIALIZED = 15, 1


def results(client: Client) -> dict[str, int]:
    """What each call for processes, their use or the memory of card 0 returns."""
    return {
        name: int(client.ask(f"python {NVML}.{name}({CARD},{arguments})")[0])
        for name, arguments in PROCESS_CALLS.items()
    }


def test_a_share_returns_the_drivers_own_errors(t4_nvml: SimBox) -> None:
    t4_nvml.limit(4 * GIB)
    client = t4_nvml.caller()
    client.ask(f"python {NVML}.nvmlInit_v2()")
    assert client.ask(f"python {NVML}.nvmlDeviceGetHandleByIndex_v2(0,ctypes.byref({CARD}))") == ["0"]
    usual = results(client)
    assert {usual[name] for name in PROCESS_CALLS} <= {0, 6}, "there may be no samples yet"
    state = t4_nvml.environment["VGPU_SIM_DIR"]
    t4_nvml.simctl.set_lost(state, 0)
    assert set(results(client).values()) == {GPU_IS_LOST}
    t4_nvml.simctl.set_lost(state, 0, False)
    assert results(client) == usual
    client.ask(f"python {NVML}.nvmlShutdown()")
    assert set(results(client).values()) == {UNINITIALIZED}

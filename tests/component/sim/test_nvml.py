"""nvidia-ml-py, unchanged, on the simulated driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

MIB = 1 << 20

CARDS = """
import json
from pynvml import *
nvmlInit()
cards = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
"""


@pytest.mark.parametrize(
    ("profile", "count", "name", "memory_mib", "capability", "links"),
    [
        ("t4x1", 1, "Tesla T4", 15360, [7, 5], 0),
        ("a100x2", 2, "NVIDIA A100-PCIE-40GB", 40960, [8, 0], 12),
        ("h100x1", 1, "NVIDIA H100 80GB HBM3", 81559, [9, 0], 0),
        ("h200x8", 8, "NVIDIA H200", 143771, [9, 0], 18),
        ("mixed", 4, "Tesla T4", 15360, [7, 5], 0),
    ],
)
def test_profiles(
    make_node: Callable[..., Any],
    profile: str,
    count: int,
    name: str,
    memory_mib: int,
    capability: list[int],
    links: int,
) -> None:
    code = f"""{CARDS}
def links(card):
    active = 0
    for link in range(NVML_NVLINK_MAX_LINKS):
        try:
            active += nvmlDeviceGetNvLinkState(card, link)
        except NVMLError:
            break
    return active
print(json.dumps([len(cards), nvmlDeviceGetName(cards[0]), nvmlDeviceGetMemoryInfo(cards[0]).total,
                  nvmlDeviceGetCudaComputeCapability(cards[0]), links(cards[0])]))
"""
    assert make_node(profile).python(code) == [count, name, memory_mib * MIB, capability, links]


def test_its_figures_of_a_card(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2")
    code = f"""{CARDS}
card, pci = cards[1], nvmlDeviceGetPciInfo(cards[1])
assert nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(card))) == nvmlDeviceGetUUID(card)
assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(pci.busId)) == 1
assert nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId("0000:5E:00.0")) == 1
refused = {{}}
for name, call in dict(mig=lambda: nvmlDeviceGetMigMode(card), numa=lambda: nvmlDeviceGetNumaNodeId(card),
                       index=lambda: nvmlDeviceGetHandleByIndex(2),
                       bus=lambda: nvmlDeviceGetHandleByPciBusId("0000:01:00.0"),
                       absent=lambda: nvmlDeviceGetPdi(card),
                       refused=lambda: nvmlDeviceGetConfComputeMemSizeInfo(card)).items():
    try:
        refused[name] = call()
    except NVMLError as error:
        refused[name] = error.value
print(json.dumps(dict(
    driver=nvmlSystemGetDriverVersion(), nvml=nvmlSystemGetNVMLVersion(), cuda=nvmlSystemGetCudaDriverVersion(),
    uuid=nvmlDeviceGetUUID(card), minor=nvmlDeviceGetMinorNumber(card), bus=pci.busId, legacy=pci.busIdLegacy,
    device=hex(pci.pciDeviceId),
    bar1=nvmlDeviceGetBAR1MemoryInfo(card).bar1Total, architecture=nvmlDeviceGetArchitecture(card),
    utilization=nvmlDeviceGetUtilizationRates(card).gpu, clock=nvmlDeviceGetClockInfo(card, NVML_CLOCK_SM),
    persistence=nvmlDeviceGetPersistenceMode(card), mode=nvmlDeviceGetComputeMode(card),
    serial=len(nvmlDeviceGetSerial(card)), refused=refused)))
"""
    assert node.python(code) == {
        "driver": "550.54.15",
        "nvml": "12.550.54.15",
        "cuda": 12040,
        "uuid": node.card(1)["uuid"],
        "minor": 0,
        "bus": "00000000:5E:00.0",
        "legacy": "0000:5E:00.0",
        "device": "0x20f110de",
        "bar1": 65536 * MIB,
        "architecture": pynvml.NVML_DEVICE_ARCH_AMPERE,
        "utilization": 0,
        "clock": 1410,
        "persistence": 1,
        "mode": 0,
        "serial": 13,
        "refused": {
            "mig": [0, 0],
            "numa": pynvml.NVML_ERROR_NOT_SUPPORTED,
            "index": pynvml.NVML_ERROR_INVALID_ARGUMENT,
            "bus": pynvml.NVML_ERROR_NOT_FOUND,
            "absent": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            "refused": pynvml.NVML_ERROR_NOT_SUPPORTED,
        },
    }


def test_memory_and_processes(node: Any) -> None:
    client = node.client().start()
    assert client("alloc", 1000 * MIB)[0] == 0
    code = f"""{CARDS}
first, second = nvmlDeviceGetMemoryInfo(cards[0]), nvmlDeviceGetMemoryInfo(cards[0], version=nvmlMemory_v2)
print(json.dumps([[first.total, first.used, first.free], [second.total, second.reserved, second.used, second.free],
                  [[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses(cards[0])],
                  [[p.pid, p.usedGpuMemory] for p in nvmlDeviceGetComputeRunningProcesses_v2(cards[0])],
                  nvmlDeviceGetGraphicsRunningProcesses(cards[0])]))
"""
    first, second, processes, processes_v2, graphics = node.python(code)
    card = node.card()
    used = 1000 * MIB + card["context_overhead"]
    assert first == [card["total"], used + card["reserved"], card["free"]]
    assert second == [card["total"], card["reserved"], used, card["free"]]
    assert processes == processes_v2 == [[client.process.pid, used]]
    assert graphics == []


def test_topology(make_node: Callable[..., Any]) -> None:
    """A switched board, and a bridge that joins two cards."""
    code = f"""{CARDS}
levels = [[nvmlDeviceGetTopologyCommonAncestor(a, b) for b in cards] for a in cards]
peers = [nvmlDeviceGetNvLinkRemoteDeviceType(cards[0], link) for link in range(18)]
print(json.dumps([levels, peers, nvmlDeviceGetNvLinkRemotePciInfo(cards[0], 0).busId]))
"""
    levels, peers, bus = make_node("h100x8").python(code)
    for a in range(8):
        for b in range(8):
            expected = 0 if a == b else 10 if a // 2 == b // 2 else 40 if a // 4 == b // 4 else 50
            assert levels[a][b] == expected
    assert (set(peers), bus) == ({pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH}, "00000000:FE:00.0")
    remote = f"""{CARDS}
print(json.dumps([nvmlDeviceGetNvLinkRemotePciInfo(cards[0], 11).busId, nvmlDeviceGetPciInfo(cards[1]).busId]))
"""
    ours, theirs = make_node("a100x2").python(remote)
    assert ours == theirs


def test_events(node: Any) -> None:
    code = f"""{CARDS}
import sys
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(cards[0], nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
sys.stdin.readline()
seen = []
for _ in range(2):
    try:
        event = nvmlEventSetWait_v2(events, 300)
        seen.append([event.eventType, event.eventData])
    except NVMLError as error:
        seen.append(error.value)
nvmlEventSetFree(events)
print(json.dumps([seen, nvmlDeviceGetTotalEccErrors(cards[0], 0, 0), nvmlDeviceGetTotalEccErrors(cards[0], 1, 1),
                  nvmlDeviceGetTemperature(cards[0], 0)]))
"""
    node.simctl.inject_event(str(node.directory), 0, data=13)  # before anybody waits: nobody sees it
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    node.simctl.inject_ecc(str(node.directory), 0, corrected=3)
    node.simctl.set_readings(str(node.directory), 0, temperature=91)
    node.simctl.inject_event(str(node.directory), 0, data=79)
    out, _ = process.communicate("\n", timeout=120)
    assert json.loads(out) == [[[8, 79], pynvml.NVML_ERROR_TIMEOUT], 3, 0, 91]


def test_utilization_lags(line: Any) -> None:
    code = f"""{CARDS}
def look():
    try:
        processes = [[s.pid, s.smUtil] for s in nvmlDeviceGetProcessUtilization(cards[0], 0)]
    except NVMLError as error:
        processes = error.value
    return [nvmlDeviceGetUtilizationRates(cards[0]).gpu, processes, nvmlDeviceGetPowerUsage(cards[0])]
first = look()
while t() < 3000 * MS: launch(MS)
say([first, look()])
"""
    node = line(1)
    (first, then) = node.run(code)[0]
    assert first[:2] == [0, pynvml.NVML_ERROR_NOT_FOUND]
    assert then[0] > 95
    assert then[1][-1][0] == node.started[0].pid and then[1][-1][1] > 95
    assert then[2] > 42000 > first[2]


def test_initialization_is_counted(node: Any) -> None:
    code = """
import json
from pynvml import *
import pynvml
def count():
    try:
        return nvmlDeviceGetCount()
    except NVMLError as error:
        return -error.value
seen = []
for step in (nvmlInit, nvmlInit, nvmlShutdown, nvmlShutdown, nvmlInit):
    step()
    seen.append(count())
print(json.dumps(seen))
"""
    assert node.python(code) == [1, 1, 1, -pynvml.NVML_ERROR_UNINITIALIZED, 1]


def test_numbers_are_those_of_the_binding(repository: Path) -> None:
    header = (repository / "libvcuda/sim/nvml/types.h").read_text()
    returns = re.findall(r"X\((NVML_\w+), (\d+),", header)
    assert len(returns) > 10
    for name, number in returns:
        assert getattr(pynvml, name) == int(number), name


def test_nvidia_smi(node: Any, driver_root: Path) -> None:
    client = node.client().start()
    assert client("alloc", 100 * MIB)[0] == 0
    smi = driver_root / "usr/bin/nvidia-smi"

    def run(*arguments: str) -> str:
        return subprocess.run(
            [smi, *arguments], env=node.environment(), check=True, capture_output=True, text=True
        ).stdout

    table = run()
    assert "Driver Version: 550.54.15" in table and "CUDA Version: 12.4" in table
    assert "220MiB /  15360MiB" in table and str(client.process.pid) in table
    assert run("-L") == f"GPU 0: Tesla T4 (UUID: {node.card()['uuid']})\n"
    fields = "index,uuid,memory.used,memory.total"
    uuid = node.card()["uuid"]
    assert run(f"--query-gpu={fields}", "--format=csv,noheader,nounits") == f"0, {uuid}, 220, 15360\n"
    assert run("--query-compute-apps=pid,used_memory", "--format=csv,noheader") == f"{client.process.pid}, 220 MiB\n"
    lines = run("pmon", "-d", "1", "-c", "1", "--unknown").splitlines()
    assert lines[0].startswith("# gpu") and str(client.process.pid) in lines[2]

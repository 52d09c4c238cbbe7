"""nvidia-ml-py, unchanged, on the simulated driver."""

from __future__ import annotations

import re
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


def test_numbers_are_those_of_the_binding(repository: Path) -> None:
    header = (repository / "libvcuda/sim/nvml/types.h").read_text()
    returns = re.findall(r"X\((NVML_\w+), (\d+),", header)
    assert len(returns) > 10
    for name, number in returns:
        assert getattr(pynvml, name) == int(number), name

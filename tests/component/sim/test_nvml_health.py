"""NVML calls of health checks and exporters, and cards and drivers with faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

PROLOGUE = """
import json, sys
from pynvml import *
def ask(call, *arguments):
    try:
        return call(*arguments)
    except NVMLError as error:
        return -error.value
nvmlInit()
cards = [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
"""
LOST = -pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = -pynvml.NVML_ERROR_NOT_SUPPORTED
NOT_LOADED = -pynvml.NVML_ERROR_DRIVER_NOT_LOADED


class Program:
    """A process that evaluates one expression for each line that it gets."""

    def __init__(self, node: Any, code: str) -> None:
        loop = "print('ready', flush=True)\nfor line in sys.stdin:\n    print(json.dumps(eval(line)), flush=True)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + code + loop],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def __call__(self, question: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_card_falls_off_the_bus_and_comes_back(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2")
    directory = str(node.directory)
    code = """
events = nvmlEventSetCreate()
for card in cards:
    nvmlDeviceRegisterEvents(card, nvmlEventTypeXidCriticalError, events)
uuid = nvmlDeviceGetUUID(cards[0])
def wait():
    event = nvmlEventSetWait_v2(events, 50)
    return event.eventData
"""
    with Program(node, code) as program:
        assert program("ask(wait)") == -pynvml.NVML_ERROR_TIMEOUT
        node.simctl.inject_event(directory, 0, data=79)
        node.simctl.set_lost(directory, 0)
        assert program("ask(wait)") == 79  # what happened before is told first
        assert program("ask(wait)") == LOST
        assert program(
            "[ask(nvmlDeviceGetUUID, card)[:4] if i else ask(nvmlDeviceGetUUID, card) for i, card in enumerate(cards)]"
        ) == [LOST, "GPU-"]
        assert program("ask(nvmlDeviceGetTemperature, cards[0], 0)") == LOST
        assert program("ask(nvmlDeviceGetMinorNumber, cards[0])") == LOST
        assert program("[ask(nvmlDeviceGetHandleByIndex, 0), ask(nvmlDeviceGetHandleByUUID, uuid)]") == [LOST, LOST]
        assert program("nvmlDeviceGetCount()") == 2
        client = node.client()
        assert client("init") == 0
        assert client("context", 0) == 999
        assert client("context", 1) == 0
        node.simctl.inject_event(directory, 0, kind="back")
        assert program("ask(nvmlDeviceGetUUID, cards[0]) == uuid")
        assert program("ask(wait)") == -pynvml.NVML_ERROR_TIMEOUT
        assert client("context", 0) == 0


@pytest.mark.parametrize(
    ("state", "nvml", "cuda"),
    [("unloaded", NOT_LOADED, 100), ("mismatched", -pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, 803)],
)
def test_the_driver_goes_and_comes(node: Any, state: str, nvml: int, cuda: int) -> None:
    directory = str(node.directory)
    init = """
import json
from pynvml import *
try:
    nvmlInit()
    print(0)
except NVMLError as error:
    print(-error.value)
"""
    with Program(node, "") as program:
        assert node.simctl.main(["driver", directory, state]) == 0
        assert program("ask(nvmlDeviceGetCount)") == nvml
        assert program("ask(nvmlDeviceGetMemoryInfo, cards[0])") == nvml
        assert node.python(init) == nvml
        assert node.client()("init") == cuda
        node.simctl.set_driver(directory, "loaded")
        assert program("ask(nvmlDeviceGetCount)") == 1
        assert program("ask(nvmlDeviceGetName, cards[0])") == "Tesla T4"
        assert node.python(init) == 0
        assert node.client()("init") == 0


def test_remapped_rows(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2")
    with Program(node, "") as program:
        names = "('max', 'high', 'partial', 'low', 'none')"
        histogram = f"[getattr(nvmlDeviceGetRowRemapperHistogram(cards[0]), name) for name in {names}]"
        fields = "[v.value.uiVal for v in nvmlDeviceGetFieldValues(cards[0], [142, 143, 144, 145])]"
        assert program("nvmlDeviceGetRemappedRows(cards[0])") == [0, 0, 0, 0]
        assert program(histogram) == [640, 0, 0, 0, 0]
        assert node.simctl.main(["set", str(node.directory), "--remapped-rows", "3,2,1,1"]) == 0
        assert program("nvmlDeviceGetRemappedRows(cards[0])") == [3, 2, 1, 1]
        assert program("nvmlDeviceGetRemappedRows(cards[1])") == [0, 0, 0, 0]
        assert program(histogram) == [634, 5, 0, 0, 1]
        assert program(fields) == [3, 2, 1, 1]
        assert program("ask(nvmlDeviceGetRetiredPages, cards[0], 0)") == NOT_SUPPORTED


def test_retired_pages(node: Any) -> None:
    with Program(node, "") as program:
        assert program(
            "[nvmlDeviceGetRetiredPages(cards[0], 1), nvmlDeviceGetRetiredPagesPendingStatus(cards[0])]"
        ) == [[], 0]
        assert node.simctl.main(["set", str(node.directory), "--retired-pages", "1,2,1"]) == 0
        assert len(program("nvmlDeviceGetRetiredPages(cards[0], 1)")) == 2
        assert program("nvmlDeviceGetRetiredPagesPendingStatus(cards[0])") == 1
        assert program("[v.value.uiVal for v in nvmlDeviceGetFieldValues(cards[0], [29, 30, 31])]") == [1, 2, 1]
        assert program("ask(nvmlDeviceGetRemappedRows, cards[0])") == NOT_SUPPORTED


def test_memory_errors(node: Any) -> None:
    with Program(node, "") as program:
        assert node.simctl.main(["set", str(node.directory), "--ecc", "5,1", "--temperature", "77"]) == 0
        totals = "[nvmlDeviceGetTotalEccErrors(cards[0], kind, counter) for kind in (0, 1) for counter in (0, 1)]"
        assert program(totals) == [5, 5, 1, 1]
        assert program("nvmlDeviceGetDetailedEccErrors(cards[0], 1, 0).deviceMemory") == 1
        assert program("[v.value.ullVal for v in nvmlDeviceGetFieldValues(cards[0], [3, 4, 11, 12, 7])]") == [
            5,
            1,
            5,
            1,
            0,
        ]
        assert program("nvmlDeviceGetTemperature(cards[0], 0)") == 77


def test_field_values(make_node: Callable[..., Any]) -> None:
    node = make_node("h100x8")
    code = """
def fields(*ids):
    return [[v.nvmlReturn, v.value.ullVal] for v in nvmlDeviceGetFieldValues(cards[0], list(ids))]
"""
    with Program(node, code) as program:
        assert program("fields(91, 90, 147, 38, 94, (165, 17), (146, 3), 185)")[:7] == [
            [0, 18],
            [0, 26562],
            [0, 18],
            [0, 0],
            [0, 0],
            [0, 1],
            [0, 3],
        ]
        assert program("fields(9999, (165, 18), 186)")[:2] == [[3, 0], [2, 0]]
        assert program("fields(186)")[0][1] > 0
    with Program(make_node("t4x1"), code) as program:
        assert program("fields(91, 142, 82, 1)") == [[3, 0], [3, 0], [3, 0], [0, 1]]


def test_processes_in_structures_with_versions(node: Any) -> None:
    client = node.client().start()
    with Program(node, "") as program:
        question = "nvmlDeviceGetRunningProcessDetailList(cards[0], nvmlProcessDetailList_v1, 0)"
        listed = program(f"[[p.pid, p.usedGpuMemory] for p in {question}]")
        assert listed == [[client.process.pid, node.card()["context_overhead"]]]
        assert program("ask(nvmlDeviceGetProcessesUtilizationInfo, cards[0], 0)") == -pynvml.NVML_ERROR_NOT_FOUND


def test_topology_as_lists(make_node: Callable[..., Any]) -> None:
    with Program(make_node("h100x8"), "index = nvmlDeviceGetIndex\n") as program:
        assert program("[index(d) for d in nvmlSystemGetTopologyGpuSet(50)]") == [4, 5, 6, 7]
        assert program("[index(d) for d in nvmlDeviceGetTopologyNearestGpus(cards[2], NVML_TOPOLOGY_SINGLE)]") == [3]
        assert program("len(nvmlDeviceGetTopologyNearestGpus(cards[2], NVML_TOPOLOGY_NODE))") == 2
        assert program("nvmlDeviceOnSameBoard(cards[0], cards[1])") == 0
    fabric = """
info = c_nvmlGpuFabricInfo_v2_t()
nvmlDeviceGetGpuFabricInfoV(cards[0], byref(info))
"""
    for profile, state in (("h100x8", 3), ("t4x1", 0)):
        with Program(make_node(profile), fabric) as program:
            assert program("info.state & 0xff") == state


def test_what_idles_and_what_is_off(make_node: Callable[..., Any]) -> None:
    """These calls return values and not errors, as exporters skip a card that fails too many calls."""
    questions = {
        "nvmlDeviceIsMigDeviceHandle(cards[0]).value": 0,
        "ask(nvmlDeviceGetMigDeviceHandleByIndex, cards[0], 0)": -pynvml.NVML_ERROR_NOT_FOUND,
        "nvmlDeviceGetMaxMigDeviceCount(cards[0])": 7,
        "nvmlDeviceGetVirtualizationMode(cards[0])": 0,
        "nvmlDeviceGetViolationStatus(cards[0], 0).violationTime": 0,
        "nvmlDeviceGetPcieThroughput(cards[0], 0)": 0,
        "nvmlDeviceGetPcieSpeed(cards[0])": 16000,
        "nvmlDeviceGetEncoderSessions(cards[0])": [],
        "nvmlDeviceGetEncoderStats(cards[0])": [0, 0, 0],
        "nvmlDeviceGetFBCStats(cards[0]).sessionsCount": 0,
        "nvmlDeviceGetSupportedPerformanceStates(cards[0])": [0],
        "nvmlDeviceGetPowerSource(cards[0])": 0,
        "nvmlDeviceGetGspFirmwareVersion(cards[0]).decode()": "550.54.15",
        "nvmlDeviceGetNvLinkErrorCounter(cards[0], 0, 0)": 0,
        "nvmlGpmQueryDeviceSupport(cards[0]).isSupportedDevice": 0,
        "nvmlUnitGetCount()": 0,
        "nvmlSystemGetHicVersion()": [],
        "ask(nvmlDeviceGetActiveVgpus, cards[0])": NOT_SUPPORTED,
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleBySerial(nvmlDeviceGetSerial(cards[1])))": 1,
    }
    with Program(make_node("a100x2"), "") as program:
        assert {question: program(question) for question in questions} == questions

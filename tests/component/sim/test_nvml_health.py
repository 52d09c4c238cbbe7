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


def test_errors_of_the_memory(make_node: Callable[..., Any]) -> None:
    """Ampere and later remap rows; earlier cards retire pages."""
    node = make_node("a100x2")
    totals = "[nvmlDeviceGetTotalEccErrors(cards[0], kind, counter) for kind in (0, 1) for counter in (0, 1)]"
    with Program(node, "") as program:
        changes = ("--remapped-rows", "3,2,1,1", "--ecc", "5,1", "--temperature", "77")
        assert node.simctl.main(["set", str(node.directory), *changes]) == 0
        assert program("[nvmlDeviceGetRemappedRows(card) for card in cards]") == [[3, 2, 1, 1], [0, 0, 0, 0]]
        assert program("ask(nvmlDeviceGetRetiredPagesPendingStatus, cards[0])") == NOT_SUPPORTED
        assert program(totals) == [5, 5, 1, 1]
        assert program("nvmlDeviceGetTemperature(cards[0], 0)") == 77
    node = make_node("t4x1")
    with Program(node, "") as program:
        assert program("nvmlDeviceGetRetiredPagesPendingStatus(cards[0])") == 0
        assert node.simctl.main(["set", str(node.directory), "--retired-pages", "1,2,1"]) == 0
        assert program("nvmlDeviceGetRetiredPagesPendingStatus(cards[0])") == 1
        assert program("ask(nvmlDeviceGetRemappedRows, cards[0])") == NOT_SUPPORTED


def test_field_values(make_node: Callable[..., Any]) -> None:
    code = """
def fields(*ids):
    return [[v.nvmlReturn, v.value.ullVal] for v in nvmlDeviceGetFieldValues(cards[0], list(ids))]
"""
    with Program(make_node("h100x8"), code) as program:
        assert program("fields(91, (138, 3), 9999)") == [[0, 18], [0, 0], [3, 0]]
        assert program("fields(82)")[0][1] > 0
    with Program(make_node("t4x1"), code) as program:
        assert program("fields(91, 82)") == [[3, 0], [3, 0]]

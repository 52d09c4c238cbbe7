"""Which cards a process sees: those whose device nodes it can open; and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vcuda_boxes import OWN_DEV

NO_DEVICE = 100
UNKNOWN = 999

NVML = """
import json, pynvml
pynvml.nvmlInit()
print(json.dumps([pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByIndex(i))
                  for i in range(pynvml.nvmlDeviceGetCount())]))
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ("nvidiactl=195:255 nvidia-uvm=511:0", NO_DEVICE),
        ("nvidia-uvm=511:0 nvidia0=195:0", NO_DEVICE),
        ("nvidiactl=195:255 nvidia0=195:0", UNKNOWN),
        ("nvidiactl=195:255 nvidia-uvm=511:0 nvidia0=195:1", NO_DEVICE),
        ("nvidiactl=195:255 nvidia-uvm=511:0 nvidia0=195:0 nvidia1=1:3", 0),
    ],
)
def test_a_missing_or_wrong_node_counts(make_node: Callable[..., Any], nodes: str, result: int) -> None:
    client = make_node("a100x2", device_nodes=True).client(*OWN_DEV, NODES=nodes)
    assert client.numbers("cuInit 0") == (result,)
    if result == 0:
        assert client.made("cuDeviceGetCount &") == 1


def test_cuda_numbers_the_fastest_first_and_nvml_by_bus(make_node: Callable[..., Any]) -> None:
    node = make_node("mixed")
    totals = []
    for client in (node.client(), node.client(CUDA_DEVICE_ORDER="PCI_BUS_ID")):
        client.does("cuInit 0")
        totals.append([client.made(f"cuDeviceTotalMem_v2 & {device}") for device in range(4)])
    assert totals[0] == sorted(totals[1], reverse=True) != totals[1], "an A100 has more than a T4"
    assert node.python(NVML, CUDA_VISIBLE_DEVICES="2") == [0, 1, 2, 3]

"""Which cards a process sees: those whose device nodes it can open, and with CUDA those in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NO_DEVICE = 100
UNKNOWN = 999
DRIVER_NOT_LOADED = 9

NVML = """
import json, pynvml
pynvml.nvmlInit()
print(json.dumps([pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByIndex(i))
                  for i in range(pynvml.nvmlDeviceGetCount())]))
"""

# A /dev of its own: tmpfs in a private mount namespace, with the nodes that the arguments name.
IN_OWN_DEV = """
mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9
for node in $NODES; do mknod /dev/${node%%=*} c $(echo ${node##*=} | tr : ' '); done
exec "$@"
"""


OWN_DEV = ("unshare", "--mount", "sh", "-ec", IN_OWN_DEV, "sh")


def in_own_dev(node: Any, nodes: str) -> Any:
    return node.client(*OWN_DEV, NODES=nodes)


@pytest.mark.root
def test_without_nodes_there_is_no_card(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2", device_nodes=True)
    assert in_own_dev(node, "")("init") == NO_DEVICE
    code = "import json, pynvml\ntry:\n pynvml.nvmlInit()\nexcept pynvml.NVMLError as e:\n print(json.dumps(e.value))"
    assert node.python(code, *OWN_DEV, NODES="") == DRIVER_NOT_LOADED
    assert node.python(NVML, *OWN_DEV, NODES="nvidiactl=195:255") == []


@pytest.mark.root
def test_only_cards_with_a_node_are_seen(make_node: Callable[..., Any]) -> None:
    node = make_node("a100x2", device_nodes=True)
    client = in_own_dev(node, "nvidiactl=195:255 nvidia-uvm=511:0 nvidia1=195:1")
    assert client("init") == 0
    expected = [card["uuid"] for card in node.simctl.read_state(str(node.directory))["cards"] if card["minor"] == 1]
    assert client("uuids") == [uuid.removeprefix("GPU-").replace("-", "") for uuid in expected]


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
    client = in_own_dev(make_node("a100x2", device_nodes=True), nodes)
    assert client("init") == result
    if result == 0:
        assert len(client("names")) == 1


def test_cuda_numbers_the_fastest_first_and_nvml_by_bus(make_node: Callable[..., Any]) -> None:
    node = make_node("mixed")
    client = node.client()
    assert client("init") == 0
    assert client("names") == ["NVIDIA A100-PCIE-40GB"] * 2 + ["Tesla T4"] * 2
    ordered = node.client(CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert ordered("init") == 0
    assert ordered("names") == ["Tesla T4"] * 2 + ["NVIDIA A100-PCIE-40GB"] * 2
    assert node.python(NVML, CUDA_VISIBLE_DEVICES="2") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("0", [0]),
        ("1,0", [1, 0]),
        ("3,-1,2", [3]),
        ("2,9,1", [2]),
        ("1,nonsense", [1]),
        ("UUID3", [3]),
        ("PREFIX2,0", [2, 0]),
        ("0,0", None),
        ("", None),
        ("-1", None),
        ("GPU-", None),
        ("NoDevFiles", None),
    ],
)
def test_cuda_visible_devices(make_node: Callable[..., Any], visible: str, cards: list[int] | None) -> None:
    node = make_node("h100x8")
    uuids = [card["uuid"] for card in node.simctl.read_state(str(node.directory))["cards"]]
    visible = visible.replace("UUID3", uuids[3]).replace("PREFIX2", uuids[2][:12])
    client = node.client(CUDA_VISIBLE_DEVICES=visible)
    assert client("init") == (0 if cards else NO_DEVICE)
    if cards:
        assert client("uuids") == [uuids[card].removeprefix("GPU-").replace("-", "") for card in cards]

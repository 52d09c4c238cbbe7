"""A missing, truncated or damaged state is an error of the driver and never a crash of the program."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

NO_DEVICE = 100
OPERATING_SYSTEM = 304
SYSTEM_NOT_READY = 802
DRIVER_NOT_LOADED = 9
UNKNOWN = 999

NVML_INIT = """
import json, pynvml
try:
    pynvml.nvmlInit()
    print(0)
except pynvml.NVMLError as error:
    print(error.value)
"""


def overwrite(directory: Path, offset: int, content: bytes) -> None:
    with open(directory / "cards", "r+b") as file:
        file.seek(offset)
        file.write(content)


def test_no_state_is_no_driver(node: Any) -> None:
    (node.directory / "cards").unlink()
    assert node.client()("init") == NO_DEVICE
    assert node.python(NVML_INIT) == DRIVER_NOT_LOADED


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000])
def test_a_short_file(node: Any, size: int) -> None:
    os.truncate(node.directory / "cards", size)
    assert node.client()("init") == SYSTEM_NOT_READY
    assert node.python(NVML_INIT) == UNKNOWN
    with pytest.raises(node.simctl.SimError):
        node.simctl.read_state(str(node.directory))


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"VGPU-SIM"),
        (8, b"\1"),
        (12, b"\xff" * 4),
        (16, b"\1"),
        (256, b"\xff" * 512),
        (256 + 16, b"x" * 64),
        (256 + 96, bytes(8)),
    ],
    ids=["magic", "version", "card count", "slot count", "a card", "a name without end", "no memory"],
)
def test_a_damaged_header_or_card(node: Any, offset: int, content: bytes) -> None:
    overwrite(node.directory, offset, content)
    assert node.client()("init") == SYSTEM_NOT_READY
    assert node.python(NVML_INIT) == UNKNOWN


def test_garbage_in_the_slots_is_no_process(node: Any) -> None:
    """A slot without a lock has no owner, so the remains of a dead process do not count."""
    overwrite(node.directory, 256 + 16 * 512, random.Random(2).randbytes(1024 * 512))
    overwrite(node.directory, 24, b"\xff\xff\xff\xff")
    client = node.client().start()
    assert client("alloc", node.card()["free"])[0] == 0
    assert len(node.card()["processes"]) == 1


def test_cut_while_in_use(node: Any) -> None:
    """Every access to the ledger checks the size first, as the mapping's pages beyond it would cause SIGBUS."""
    client = node.client().start()
    pointer = client("alloc", 1 << 20)[1]
    os.truncate(node.directory / "cards", 0)
    assert client("alloc", 512)[0] == SYSTEM_NOT_READY
    assert client("info")[0] == SYSTEM_NOT_READY
    assert client("free", pointer) == 0


@pytest.mark.root
def test_a_read_only_state_is_refused(node: Any) -> None:
    script = f'mount --bind -o ro {node.directory} {node.directory}; exec "$@"'
    client = node.client("unshare", "--mount", "sh", "-ec", script, "sh")
    assert client("init") == OPERATING_SYSTEM

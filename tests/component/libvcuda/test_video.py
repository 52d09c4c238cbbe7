"""Memory of the video encoder's and decoder's sessions: it is charged by NVML's figure for the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vcuda_boxes import Client, SimBox

OUT_OF_MEMORY = 2
MIB = 1 << 20
GIB = 1 << 30
LIMIT = GIB
SESSION = 300 * MIB
PATIENCE = 30  # seconds; a process looks at NVML's figure every 5


def add_session(box: SimBox, client: Client, size: int) -> None:
    box.simctl.add_session(box.environment["VGPU_SIM_DIR"], 0, client.process.pid, size)


def shows(client: Client, free: int) -> bool:
    """Whether the program soon sees that much free memory."""
    end = time.monotonic() + PATIENCE
    while client.free_bytes() != free and time.monotonic() < end:
        time.sleep(0.2)
    return client.free_bytes() == free


@pytest.mark.parametrize("others", [False, True], ids=["its own", "another process's"])
def test_a_session_is_part_of_the_share(t4_nvml: SimBox, others: bool) -> None:
    t4_nvml.limit(LIMIT)
    client = t4_nvml.opened()
    holder = t4_nvml.opened() if others else client
    room = LIMIT - t4_nvml.context * (1 + others)
    assert client.free_bytes() == room
    add_session(t4_nvml, holder, SESSION)
    assert shows(holder, room - SESSION)
    assert client.free_bytes() == room - SESSION
    assert client.alloc(room - SESSION + 1)[0] == OUT_OF_MEMORY
    code, pointer = client.alloc(room - SESSION)
    assert code == 0
    assert client.ask(f"free {pointer}") == ["0"]
    add_session(t4_nvml, holder, -SESSION)
    assert shows(holder, room)
    assert client.alloc(room)[0] == 0


def test_the_session_of_a_killed_process_is_free_again(t4_nvml: SimBox) -> None:
    t4_nvml.limit(LIMIT)
    client, holder = t4_nvml.opened(), t4_nvml.opened()
    add_session(t4_nvml, holder, SESSION)
    room = LIMIT - 2 * t4_nvml.context
    assert shows(holder, room - SESSION)
    holder.kill()
    assert shows(client, room + t4_nvml.context)

"""Reads the lines of a unit from journald, by journalctl(1).

Belongs here: the call, and decoding its JSON. Does not belong here: what a line means. journald keeps the lines of
services; there are none where vgpud runs without systemd, such as in the DaemonSet's pod.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from vgpu.config.errors import VgpuError, shown
from vgpu.node.service import installation

MAX_LINES = 10_000
LIMIT = 20.0  #: seconds for journalctl, which reads some 10,000 lines in one
WARNING = 4  #: syslog's level: warnings and what is worse have at most this
END_OF_TIME = 253_000_000_000.0  #: seconds since 1970, in the year 9987: the calendar has no later time

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


class Entry:
    """A line in the journal: seconds since 1970, the pid and the level of its writer, the text."""

    __slots__ = ("pid", "priority", "text", "time")

    def __init__(self, time: float, pid: int, priority: int, text: str) -> None:
        self.time = time
        self.pid = pid
        self.priority = priority
        self.text = text


def read(unit: str, run: Run = subprocess.run) -> list[Entry]:
    """The last MAX_LINES lines that processes of `unit` wrote, the oldest first. VgpuError if there is no journal.

    systemd's own lines about the unit, such as that it was started, are left out.
    """
    command = ["journalctl", f"_SYSTEMD_UNIT={unit}", "--output=json", "--all", "--quiet", "--no-pager"]
    try:
        done = run([*command, f"--lines={MAX_LINES}"], capture_output=True, timeout=LIMIT, check=False)
    except FileNotFoundError as error:
        do = f"see: {installation.log_of_vgpud()}" if installation.release() else ""
        raise VgpuError("journal", expected="journalctl", found="no such program", do=do) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VgpuError("journal", expected="journalctl to answer", found=str(error)) from error
    if done.returncode:
        found = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise VgpuError("journal", expected="journalctl to succeed", found=shown(found) or f"status {done.returncode}")
    return [entry for line in done.stdout.splitlines() for entry in _decoded(line)]


def _decoded(line: bytes) -> list[Entry]:
    """The line as a list of one entry, or none if it has another form."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    time, text = _whole(found.get("__REALTIME_TIMESTAMP"), -1) / 1e6, _text(found.get("MESSAGE"))
    if not (0 <= time < END_OF_TIME and text):
        return []
    return [Entry(time, _whole(found.get("_PID"), 0), _whole(found.get("PRIORITY"), WARNING + 2), text)]


def _whole(value: object, default: int) -> int:
    """A number, which journalctl prints as a text."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else default


def _text(value: object) -> str:
    """The message. journalctl prints one that is not UTF-8, or has control characters, as a list of bytes."""
    if isinstance(value, list):
        if not all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return ""
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else ""

"""Reading vgpud's lines from journald: what journalctl prints, and its failures."""

from __future__ import annotations

import json
import subprocess

import pytest

from vgpu.config.errors import VgpuError
from vgpu.node.ctl import journal
from vgpu.node.ctl.journal import Entry


class Journalctl:
    """A journalctl that prints `lines` and ends with `status`."""

    def __init__(self, *lines: object, status: int = 0, stderr: bytes = b"") -> None:
        self.output = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        self.status = status
        self.stderr = stderr
        self.command: list[str] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        self.command = command
        return subprocess.CompletedProcess(command, self.status, self.output, self.stderr)

    def read(self) -> list[tuple[float, int, int, str]]:
        found: list[Entry] = journal.read("vgpud.service", self)
        return [(entry.time, entry.pid, entry.priority, entry.text) for entry in found]


def line(message: object = "started", **fields: object) -> dict[str, object]:
    return {"__REALTIME_TIMESTAMP": "1500000", "_PID": "7", "PRIORITY": "6", "MESSAGE": message, **fields}


def test_a_line_has_its_time_pid_level_and_text() -> None:
    program = Journalctl(line(), line("over: x", PRIORITY="4"))
    assert program.read() == [(1.5, 7, 6, "started"), (1.5, 7, 4, "over: x")]
    assert "_SYSTEMD_UNIT=vgpud.service" in program.command


def test_bytes_that_are_no_text_of_utf_8_are_replaced() -> None:
    assert Journalctl(line([120, 255, 27])).read() == [(1.5, 7, 6, "x\ufffd\x1b")]


def test_a_line_without_pid_or_level_is_no_warning() -> None:
    found = Journalctl({"__REALTIME_TIMESTAMP": "0", "MESSAGE": "x"}).read()
    assert found == [(0.0, 0, 6, "x")]


@pytest.mark.parametrize(
    "other",
    [
        b"\xff\n", b"{\n", [], line(None), line([1, 256]), line(["x"]), line(__REALTIME_TIMESTAMP="x"),
        line(__REALTIME_TIMESTAMP="9" * 19), line(__REALTIME_TIMESTAMP="9" * 5000), line(__REALTIME_TIMESTAMP=None),
    ],
)  # fmt: skip
def test_a_line_of_another_form_is_left_out(other: object) -> None:
    assert Journalctl(line("a"), other, line("b")).read() == [(1.5, 7, 6, "a"), (1.5, 7, 6, "b")]


def test_a_failure_gives_the_first_line_of_its_reason() -> None:
    with pytest.raises(VgpuError, match=r"found no right\\x1b$"):
        Journalctl(status=1, stderr=b"no right\x1b\nmore").read()
    with pytest.raises(VgpuError, match=r"found status 2$"):
        Journalctl(status=2).read()


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (FileNotFoundError(2, "none"), "no such program"),
        (PermissionError(13, "denied"), "denied"),
        (subprocess.TimeoutExpired("journalctl", 20), "timed out"),
    ],
)
def test_no_journalctl_is_an_error_with_its_reason(error: Exception, found: str) -> None:
    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        raise error

    with pytest.raises(VgpuError, match=found):
        journal.read("vgpud.service", fail)

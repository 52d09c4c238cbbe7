"""A forked process of vgpu.node.cards.nvml_probe, as the health monitor has it: its messages, and its end.

Belongs here: the fork, the pipe, and the form of a line. Does not belong here: what a message means.
"""

from __future__ import annotations

import gc
import os
import select
import signal

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.service import forked

MAX_LINE = 1 << 16  #: bytes
PATIENCE = 200  #: milliseconds to wait for the end of a process that was killed


class ProbeProcess:
    """A process for `cards` (uuid -> bus id). `at`: the card that it is probing, "" for none; `deadline`: the time by
    which the next message is due; `messages`: how many have come; `ended`: no message will follow. OSError when the
    process cannot be started.
    """

    def __init__(self, library: str, cards: dict[str, str], interval: float, deadline: float) -> None:
        self.cards = list(cards)
        self.deadline = deadline
        self.at = ""
        self.messages = 0
        self.ended = False
        self._gone = False
        self._data = bytearray()
        self.fd, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(write_end)
            raise
        if self.pid == 0:
            _run(library, cards, interval, write_end)
        os.close(write_end)

    def read(self) -> list[dict[str, object]]:
        """The messages that have arrived. Sets `ended` at the end of the stream, or when a message is malformed."""
        try:
            data = os.read(self.fd, MAX_LINE)
        except BlockingIOError:
            return []
        self._data += data
        *lines, rest = bytes(self._data).split(b"\n")
        self._data = bytearray(rest)
        self.ended = not data or len(rest) > MAX_LINE
        try:
            return [records.decode_object(line, "health monitor") for line in lines]
        except VgpuError:
            self.ended = True
            return []

    def end(self) -> None:
        """Kill the process, and wait a moment for it. The pipe's other end closes when the process has ended."""
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)
            _wait_for_end(self.fd)
        os.close(self.fd)

    def gone(self) -> bool:
        """Whether the process has ended; one that hangs in the driver stays until the driver returns."""
        if not self._gone:
            self._gone = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self._gone


def _wait_for_end(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # POLLHUP needs no asking
    poll.poll(PATIENCE)


def _run(library: str, cards: dict[str, str], interval: float, write_end: int) -> None:
    """Do the work in the forked process. This function never returns."""
    try:
        forked.isolate(write_end)
        gc.disable()  # it would touch every page that this process shares with vgpud
        os.set_blocking(write_end, True)
        os.dup2(write_end, 1)
        os.close(write_end)
        from vgpu.node.cards import nvml_probe  # noqa: PLC0415  # the pages of pynvml are not vgpud's

        nvml_probe.run(library, cards, interval)
    finally:
        os._exit(0)  # skips the destructors of a library whose driver may be gone

"""A process that decides how far the virtual time of a simulated node goes, step by step, for a test.

Between two steps time stands still, so that the test finds the ledger, the locks and the processes as they are at one
instant, and its signals reach programs at that instant. A program that a test starts takes part before the next step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import daemons
import simulated_clock

MS, SECOND = 1_000_000, 1_000_000_000
HANG = 300  #: seconds, after which a test takes a program for hung
RANK = "1000"  #: after all others that are due at the same instant


class Director:
    """Holds the time of the state in `directory` from its beginning on. `now` and all times are ns of its clock."""

    def __init__(self, simctl: Any, directory: Path, libcuda: Path) -> None:
        self.simctl = simctl
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, simulated_clock.__file__, str(libcuda)],
            env={**os.environ, "VGPU_SIM_DIR": str(directory), "VGPU_SIM_RANK": RANK},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.now = self._answer()

    def _answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def clock(self) -> dict[str, int]:
        clock: dict[str, int] = self.simctl.read_state(str(self.directory))["clock"]
        return clock

    def started(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program, and wait until it takes part in the time."""
        before = self.clock()["processes"]
        process = subprocess.Popen(command, **options)
        wait_for(lambda: self.clock()["processes"] > before or process.poll() is not None)
        return process

    def run(self, ns: int) -> None:
        """Let so much time pass."""
        assert self.process.stdin
        self.process.stdin.write(f"{self.now + ns}\n")
        self.process.stdin.flush()
        self.now = self._answer()

    def steps(self, ns: int, step: int = MS) -> Iterator[int]:
        """Each instant at which the next `ns` are looked at."""
        for _ in range(0, ns, step):
            self.run(step)
            yield self.now

    def until(self, condition: Callable[[], Any], within: int = 10 * SECOND, step: int = MS) -> int:
        """Let time pass until the condition holds. Returns how long that took."""
        began = self.now
        while not condition():
            assert self.now - began < within, "the condition never held"
            self.run(step)
        return self.now - began

    def go_on(self, process: subprocess.Popen[bytes]) -> None:
        """Continue a stopped program. It takes part again from this instant on."""
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: not self.clock()["stopped"])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait for what happens in real time: a program starts, or stops."""
    daemons.wait_for(condition, HANG, pause=0.002)

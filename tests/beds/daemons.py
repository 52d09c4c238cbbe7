"""vgpud as a process on a test's own node: start, query and kill it. The test inspects what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nodes

from vgpu.config.errors import VgpuError
from vgpu.node.daemon import client


def wait_for(
    holds: Callable[[], Any], timeout: float = 50, what: str | Callable[[], str] = "", pause: float = 0.05
) -> Any:
    """The value of `holds` as soon as it is true. `what` is the message of the failure if it never is.

    By default it waits for less than a minute, after which several parts would do anyway what is to come at once.
    """
    end = time.monotonic() + timeout
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError((what() if callable(what) else what) or "it did not happen in time")
        time.sleep(pause)


class Process:
    """A program of a test, whose output goes to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, command: Sequence[str | Path], environment: dict[str, str] | None = None) -> None:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        status = self.process.wait(120)
        self.process = None
        return status

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Daemon(Process):
    """vgpud of `node`."""

    def __init__(self, node: nodes.Node) -> None:
        super().__init__(node.directory / "vgpud.log")
        self.node = node

    def start(self, *prefix: str, **environment: str) -> Daemon:
        """`prefix` is a command that executes the daemon at its end, such as one that enters a namespace."""
        command = [*prefix, Path(sys.executable).parent / "vgpud", "--config", self.node.config]
        self.launch(command, {**self.node.environment(), **environment})
        return self

    def ready(self) -> Daemon:
        wait_for(lambda: self.health().get("inventory", {}).get("state") == "fresh", what=self.text())
        return self

    def health(self) -> dict[str, Any]:
        return self.ask("health")

    def ask(self, what: str) -> dict[str, Any]:
        """The daemon's answer; {} while it does not run."""
        try:
            return client.ask(self.node.settings.run_dir, what, 300)
        except VgpuError:
            return {}

    def rounds(self, count: int = 2) -> None:
        """Wait until the reaper has finished `count` more rounds."""
        for _ in range(count):
            last = self.health()["reaper"]["last"]
            wait_for(lambda last=last: self.health()["reaper"]["last"] > last)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

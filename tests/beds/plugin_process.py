"""vgpu-device-plugin as a process on a test's own node: start it, kill it, measure its memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nodes


class Plugin:
    """The device plugin of `node`. All its processes write to `log`. `prefix` is a command that runs it elsewhere."""

    def __init__(self, node: nodes.Node, prefix: Sequence[str] = ()) -> None:
        self.node = node
        self.prefix = prefix
        self.process: subprocess.Popen[bytes] | None = None
        self.log = node.directory / "plugin.log"

    def start(self, **environment: str) -> Plugin:
        program = str(Path(sys.executable).parent / "vgpu-device-plugin")
        command = [*self.prefix, program, "--config", str(self.node.config)]
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                command, env={**self.node.environment(), **environment}, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream,
            )  # fmt: skip
        return self

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

    def resident(self) -> int:
        """Bytes of its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no VmRSS")

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

"""vgpu-device-plugin as a process on a test's own node: start it, kill it, measure its memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import nodes
from daemons import Process


class Plugin(Process):
    """The device plugin of `node`. `prefix` is a command that runs it elsewhere."""

    def __init__(self, node: nodes.Node, prefix: Sequence[str] = ()) -> None:
        super().__init__(node.directory / "plugin.log")
        self.node, self.prefix = node, prefix
        self.options: tuple[str, ...] = ()

    def start(self, **environment: str) -> Plugin:
        command = [
            *self.prefix,
            Path(sys.executable).parent / "vgpu-device-plugin",
            "--config",
            self.node.config,
            *self.options,
        ]
        self.launch(command, {**self.node.environment(), **environment})
        return self

    def resident(self) -> int:
        """Bytes of its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no VmRSS")

"""A host of a test: settings, state, run and a made-up /proc below one directory, a log, and a clock that it advances.

Belongs here: what the nodes of several tests share. Not here: a node with a driver and the built gate (beds/nodes).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from vgpu.config import limits, paths, records
from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.node.service.log import Conditions, Log


class Host:
    """The host below `path`. Its directories come into being with the first file in them."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.proc = path / "proc"
        self.run_dir, self.state_dir = str(path / "run"), str(path / "state")
        self.settings = Settings({"paths.run": self.run_dir, "paths.state": self.state_dir, **settings}, "node")
        self.config = path / "config.json"
        self.log = io.StringIO()
        self.conditions = Conditions(Log(self.log, levels=False))
        self.now = 1000.0

    def write_settings(self) -> None:
        records.write(str(self.config), self.settings.record())

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def live(self, pid: int, started: int = 5, state: str = "S") -> None:
        """A process of the made-up /proc."""
        self.write(f"proc/{pid}/stat", f"{pid} (a) b) {state} {'0 ' * 18}{started} 0 0\n")

    def kill(self, pid: int) -> None:
        (self.proc / str(pid) / "stat").unlink()

    def claim(self, container: str, pid: int, started: int = 5, *cards: CardLimit, **fields: Any) -> Claim:
        """Write a claim, and its limits file; `fields` are the Claim's own."""
        known = {"exclusive": False, "holder": None, "grants": [], "bundle": "/b", "created": 1.0, "ready": True}
        made = Claim(container, pid, started, list(cards), **{**known, **fields})
        directory = Path(paths.container(self.run_dir, container))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / paths.LIMITS).write_bytes(limits.encode(container, list(cards)))
        records.write(paths.claim(self.run_dir, container), made.record())
        return made

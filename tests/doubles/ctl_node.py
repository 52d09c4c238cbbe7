"""A node with two cards, and claims whose containers' init is the test's own process, for verbs of vgpuctl."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from vgpu.config import paths, records
from vgpu.config.grants import Holder
from vgpu.config.inventory import Card, Device, Inventory
from vgpu.config.request import Request
from vgpu.config.settings import Settings
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.node.ctl.main import main

GIB = 1 << 30
PRESENT = os.getpid()


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


class Node:
    """The node. `verb` is the verb of vgpuctl that `call` runs."""

    def __init__(self, path: Path, verb: str) -> None:
        self.path = path
        self.verb = verb
        self.config = path / "config.json"
        self.settings = Settings({"paths.state": str(path / "state"), "paths.run": str(path / "run")})
        records.write(str(self.config), self.settings.record())
        self.cards = [
            Card(uuid_of(at), at, at, "", "Tesla T4", 16 * GIB, Device(f"/dev/nvidia{at}", f"nvidia{at}", 195, at))
            for at in range(2)
        ]
        (path / "run").mkdir()
        found = Inventory("550.54.15", "", 1.0, [], [], [], self.cards)
        records.write(paths.inventory(str(path / "run")), found.record())

    def claim(
        self, container: str, wanted: Request | WantedGrants, holder: Holder | None = None, name: str = ""
    ) -> None:
        """A claim of a container whose init is this process."""
        ledger = Ledger(self.settings, self.cards)
        start = Start(container, PRESENT, start_time(PRESENT), "/b", holder, name, time.time())
        assert ledger.claim(start, wanted)
        ledger.confirm(start)

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["--config", str(self.config), self.verb, *arguments])

    def json(self, *arguments: str) -> dict[str, list[dict[str, Any]]]:
        done = self.call(*arguments, "--output", "json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def change(self, container: str, **fields: object) -> None:
        path = self.path / "run/containers" / container / "claim.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

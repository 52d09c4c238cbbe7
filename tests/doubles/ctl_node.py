"""A node with two cards, and claims whose containers' init is the test's own process, for verbs of vgpuctl."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from cards import GIB, card, inventory, uuid_of, write_inventory
from click.testing import CliRunner, Result
from host import Host

from vgpu.config.grants import Holder
from vgpu.config.request import Request
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.hook.request.resolve_grants import WantedGrants
from vgpu.node.ctl.main import main

__all__ = ["GIB", "PRESENT", "Node", "uuid_of"]
PRESENT = os.getpid()


class Node(Host):
    """The node. `verb` is the verb of vgpuctl that `call` runs."""

    def __init__(self, path: Path, verb: str) -> None:
        super().__init__(path)
        self.verb = verb
        self.write_settings()
        self.cards = [card(at, bus_id="", name="Tesla T4") for at in range(2)]
        write_inventory(self.run_dir, inventory(self.cards))

    def hold(
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

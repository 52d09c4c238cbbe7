"""A node for tests of the ledger: cards, a made-up /proc, containers that start and end."""

from __future__ import annotations

import os
from pathlib import Path

from cards import GIB, card, uuid_of
from host import Host

from vgpu.config import core_schedule, grants, paths
from vgpu.config.grants import Grant, Holder
from vgpu.config.request import Request, Wishes
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.request.resolve_grants import WantedGrants

__all__ = ["GIB", "POD", "Node", "card", "redeem", "schedules_in", "share", "uuid_of"]
POD = "3f1c9a52-0b0e-4c53-9d3a-6f0f8f0f1a11"


def schedules_in(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    return [page.key() for page in core_schedule.decode(path.read_bytes())[0]]


class Node(Host):
    """A node of `cards` cards below `path`. Each start advances its clock."""

    def __init__(self, path: Path, cards: int = 2, **settings: object) -> None:
        super().__init__(path, **settings)
        self.cards = [card(index) for index in range(cards)]
        self.clock = 1000.0

    def schedule_file(self, container: str) -> Path:
        return Path(paths.core_schedules(self.settings.run_dir, container))

    def ledger(self) -> Ledger:
        """A ledger whose waiting takes no time."""
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        return Ledger(self.settings, self.cards, str(self.proc), lambda: now[0], sleep)

    def start(self, container: str, pid: int, holder: Holder | None = None, started: int = 5) -> Start:
        """Start a container whose init is alive."""
        self.live(pid, started)
        self.clock += 1
        return Start(container, pid, started, f"/bundles/{container}", holder, "", self.clock)

    def grant(self, resource: str, amount: int, devices: dict[str, str] | None = None, **fields: object) -> str:
        self.clock += 1
        made = Grant(grants.new_id(), resource, amount, self.clock, devices=devices, **fields)  # type: ignore[arg-type]
        grants.write(self.settings.state_dir, made)
        return made.id

    def pair(self, cores: int = 40, memory: int = GIB, devices: dict[str, str] | None = None) -> dict[str, str]:
        """Write a pair of grants, as kubelet's two calls of Allocate make them."""
        return {"cores": self.grant("cores", cores, devices), "memory": self.grant("memory", memory)}

    def read_grant(self, grant_id: str) -> Grant:
        return grants.read(self.settings.state_dir, grant_id)

    def grant_file(self, grant_id: str) -> Path:
        return self.path / "state/grants" / f"{grant_id}.json"

    def claim_file(self, container: str) -> Path:
        return self.path / "run/containers" / container / "claim.json"

    def reboot(self) -> None:
        """Empty the run directory, which is a tmpfs, and end all processes."""
        for root in (self.path / "run", self.proc):
            for directory, below, files in os.walk(root, topdown=False):
                for name in files:
                    os.unlink(os.path.join(directory, name))
                for name in below:
                    os.rmdir(os.path.join(directory, name))

    def containers(self) -> set[str]:
        return {claim.container for claim in self.ledger().claims()}

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the node's records, temporary files too; core schedules decoded."""
        files = (path for name in ("state", "run") for path in (self.path / name).rglob("*") if path.is_file())
        left_out = ("ledger.lock", "presence")
        found = {str(path): path.read_bytes() for path in files if not path.name.startswith(left_out)}
        pages = {path: repr(schedules_in(Path(path))) for path in found if path.endswith("/cards")}
        return {**found, **{path: text.encode() for path, text in pages.items()}}

    def commitments(self) -> dict[str, tuple[int, int, bool]]:
        found = self.ledger().commitments()
        return {uuid: (held.cores, held.memory, held.exclusive) for uuid, held in found.items()}


def share(cores: int = 40, memory: int = GIB) -> Request:
    return Request(1, cores, memory)


def redeem(ids: dict[str, str], core_limit: int = 0) -> WantedGrants:
    return WantedGrants(ids, core_limit, Wishes())

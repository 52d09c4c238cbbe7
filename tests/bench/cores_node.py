"""A node with the hook's ledger, and a *box* for each tenant: a mount namespace in which /usr/local/vgpu has what the
hook mounts into a container.

This module makes the files and claims, and runs vgpud's lender on a clock of the caller. Starting programs in the
boxes is in cores_worker.py.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from vgpu.config import core_schedule, limits, paths, records, usage
from vgpu.config.claims import Claim
from vgpu.config.limits import CardLimit
from vgpu.config.settings import Settings
from vgpu.hook.ledger import core_schedules, presence
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.linux import procfs
from vgpu.node.daemon.lender import Lender

ROUND_NS = 2_000_000_000  #: between two rounds of vgpud
ENTER = """
mount -t tmpfs none /usr/local && mkdir /usr/local/vgpu && mount --bind "$0" /usr/local/vgpu && echo in && exec cat
"""


class Box:
    """A tenant's mount namespace. `path` is its /usr/local/vgpu, where the ledger also has its files."""

    def __init__(self, run_dir: str, name: str, driver: Path) -> None:
        self.run_dir = run_dir
        self.name = name
        self.path = Path(paths.container(run_dir, name))
        (self.path / "usage").mkdir(parents=True)
        (self.path / "presence").mkdir()
        shutil.copytree(driver, self.path / "driver")
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, str(self.path)]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout and self.holder.stdout.readline() == b"in\n", "no private mount namespace"

    def claim(self, cards: list[CardLimit]) -> None:
        """Make the files of a new container, which has used nothing yet."""
        chosen = presence.choose(self.run_dir, (card.uuid for card in cards), [])
        shutil.rmtree(self.path / "presence")
        (self.path / "presence").mkdir()
        for uuid, path in chosen.items():
            presence.ensure(self.run_dir, path)
            os.link(path, self.path / "presence" / core_schedule.presence_name(uuid))
        with (self.path / "usage/usage").open("wb") as region:
            region.write(usage.BEGINNING)
            region.truncate(usage.SIZE)
        records.write_bytes(str(self.path / "limits"), limits.encode(self.name, cards))
        self._record(cards)

    def change(self, cards: list[CardLimit]) -> None:
        limits.update(str(self.path / "limits"), self.name, cards)
        self._record(cards)

    def _record(self, cards: list[CardLimit]) -> None:
        pid = self.holder.pid
        made = Claim(self.name, pid, procfs.start_time(pid), cards, False, None, [], "", 0.0, ready=True)
        records.write(paths.claim(self.run_dir, self.name), made.record())

    def release(self) -> None:
        Path(paths.claim(self.run_dir, self.name)).unlink(missing_ok=True)

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", *words]

    def close(self) -> None:
        assert self.holder.stdin and self.holder.stdout
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait()


class Node:
    """The boxes of one ledger, each made on first use; a tenant is the number of its box."""

    def __init__(self, directory: Path, driver: Path) -> None:
        self.driver = driver
        self.settings = Settings({"paths.run": str(directory / "run"), "paths.state": str(directory / "state")})
        self.boxes: list[Box] = []

    def box(self, index: int) -> Box:
        if os.geteuid() != 0:
            raise RuntimeError("needs root: private mount namespaces")
        run_dir = self.settings.run_dir
        while len(self.boxes) <= index:
            self.boxes.append(Box(run_dir, f"box{len(self.boxes)}", self.driver))
        return self.boxes[index]

    def share(self, tenants: list[list[CardLimit]]) -> None:
        """Let these tenants, and no others, share the cards from now on."""
        for index, cards in enumerate(tenants):
            self.box(index).claim(cards)
        for box in self.boxes[len(tenants) :]:
            box.release()
        found = Ledger(self.settings, []).shares()
        for claim in found:
            directory = paths.container(self.settings.run_dir, claim.container)
            core_schedules.create(directory, claim, [other for other in found if other is not claim], 0)

    def change(self, tenant: int, cards: list[CardLimit]) -> None:
        """Change a tenant's limits as `vgpuctl set` does."""
        with Lock(self.settings.run_dir):
            self.boxes[tenant].change(cards)
            Ledger(self.settings, []).reschedule(card.uuid for card in cards)

    def changes(self, tenants: int) -> list[int]:
        """What these tenants' libvcuda says that a change of contexts takes, in ns; 0: it says nothing."""
        regions = [(box.path / "usage/usage").read_bytes() for box in self.boxes[:tenants]]
        return [usage.change(region[: usage.CARDS_END])[1] for region in regions]

    def close(self) -> None:
        for box in self.boxes:
            box.close()


class Daemon:
    """vgpud's lender on the caller's clock."""

    def __init__(self, node: Node, now: Callable[[], int], sleep_until: Callable[[int], None]) -> None:
        self.lender = Lender(node.settings, clock=now)
        self.now = now
        self.sleep_until = sleep_until
        self.round = now()

    def work(self, until: int) -> None:
        """Do all rounds that are due before `until`."""
        while (at := self._next()) < until:
            self.sleep_until(at)
            if self.now() >= self.round:
                self.lender.look()
                self.round = self.now() + ROUND_NS
            self.lender.tick()

    def _next(self) -> int:
        due = self.lender.due()
        return self.round if due is None else min(self.round, self.now() + math.ceil(due * 1e9))

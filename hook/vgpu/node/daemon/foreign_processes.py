"""The monitor of foreign processes: processes on a card without a claim on it. Writes `<run>/foreign.json`.

Belongs here: calling NVML in a worker, and finding the container of each process. NVML's list is read first and the
claims second, so that a container that starts in between never counts as foreign. Does not belong here: the
consequences, which the ledger decides: no container can get a card with a foreign process as a whole card, and a share
of such a card gets a warning. The figures of the containers' own processes go to vgpu.node.daemon.driver_overhead, the
processes to vgpu.node.daemon.unlimited_processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from vgpu.config import foreign, paths, records
from vgpu.config.clock import since_boot
from vgpu.config.errors import escaped
from vgpu.config.foreign import COMPUTE, GRAPHICS, User
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.linux import procfs, staleness
from vgpu.node.daemon.driver_overhead import DriverOverhead
from vgpu.node.daemon.unlimited_processes import UnlimitedProcesses, inodes
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.driver import nvml
from vgpu.node.service.log import Conditions

INTERVAL = 15.0  #: seconds between two calls, if NVML is quick
SOON = 2.0  #: seconds between two calls, if the figure of a container has grown
VALID = 4  #: intervals after which the file is out of date
MAX_USERS = 256  #: processes for each card; others are left out
MAX_SHOWN = 3

Listed = dict[str, list[tuple[int, bool, int]]]


def listed(inventory: Inventory) -> dict[str, object]:
    """NVML's lists of processes as a worker's answer: rows by card uuid, and notes."""
    notes: list[str] = []
    found = nvml.users(nvml_of(inventory.libraries), notes.append)
    return {"cards": {uuid: rows[:MAX_USERS] for uuid, rows in found.items()}, "notes": notes}


def rows_of(answer: dict[str, object]) -> Listed:
    """The rows of a worker's answer, with their types."""
    cards_of = answer.get("cards")
    return {
        uuid: [(pid, bool(computes), memory) for pid, computes, memory in rows]
        for uuid, rows in (cards_of.items() if isinstance(cards_of, dict) else ())
    }


def judge(found: Listed, ledger: Ledger) -> dict[str, list[User]]:
    """The foreign processes among `found`, by card uuid. Cards without any are left out.

    A container's process is foreign on every card that the container does not hold.
    """
    living = [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]
    container_processes = ContainerProcesses(living, ledger.proc)
    owners = {pid: claim for claim in living for pid, _ in container_processes.of(claim)}
    foreign_users: dict[str, list[User]] = {}
    for uuid, rows in found.items():
        for pid, computes, memory in rows:
            owner = owners.get(pid)
            started = procfs.start_time(pid, ledger.proc)
            if not started or (owner is not None and any(card.uuid == uuid for card in owner.cards)):
                continue
            command = escaped(procfs.command(pid, ledger.proc))
            kind = COMPUTE if computes else GRAPHICS
            user = User(pid, started, command, kind, memory, owner.container if owner else "")
            foreign_users.setdefault(uuid, []).append(user)
    return foreign_users


class ForeignProcessMonitor(Monitor):
    """`users` are the foreign processes that were found last, by card uuid."""

    LIMIT = 60.0
    TOPIC = "NVML"
    TROUBLE = "the processes on the cards are not known"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        driver_overhead: DriverOverhead | None = None,
        unlimited: UnlimitedProcesses | None = None,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.driver_overhead = driver_overhead
        self.unlimited = unlimited
        self._limiters: frozenset[int] = frozenset()  # inodes of libvcuda's libcuda
        self.users: dict[str, list[User]] = {}
        self._record: dict[str, object] = {}  # what is to be written

    def look(self, inventory: Inventory | None) -> None:
        """Do one round. Without a fresh inventory NVML is not called."""
        worker = self._finished()
        if worker is not None:
            self._collect(worker)
        if inventory is not None and inventory.cards and self._due():
            if self.driver_overhead is not None:
                self.driver_overhead.before()
            self._limiters = inodes(
                [f"{self.settings.text('paths.libvcuda')}/libcuda.so.1", *(copy.path for copy in inventory.copies)]
            )
            self._start(lambda: listed(inventory))
        if self._record:  # again in each round until there is room for it
            records.write(paths.foreign(self.settings.run_dir), self._record)
            self._record = {}

    def stop(self) -> None:
        """Stop, and remove the file: without a monitor it would go out of date."""
        super().stop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.foreign(self.settings.run_dir))

    def _collect(self, worker: Worker) -> None:
        interval = self._pause_after(INTERVAL)
        self._not_before = self.clock() + interval
        self._report(worker.error)
        if worker.error:
            return
        found = rows_of(worker.result)
        ledger = Ledger(self.settings, [], self.proc)
        self.users = judge(found, ledger)
        if self.unlimited is not None:
            living = [claim for claim in ledger.claims() if claim.pid > 0 and ledger.lives(claim)]
            self.unlimited.look(found, living, self._limiters)
        self._record = foreign.record(self.users, staleness.boot_id(self.proc), self.clock(), VALID * interval)
        self.conditions.set(
            "foreign users", "; ".join(f"{uuid}: {_description(users)}" for uuid, users in self.users.items())
        )
        if self.driver_overhead is not None and self.driver_overhead.after(found, VALID * interval):
            self._not_before = self.clock() + self._pause_after(SOON)


def _description(users: list[User]) -> str:
    more = len(users) - MAX_SHOWN
    return ", ".join(user.describe() for user in users[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")

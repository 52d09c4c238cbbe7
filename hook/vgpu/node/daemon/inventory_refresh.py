"""Takes the node's inventory at vgpud's start, when the driver changes, and when the file is lost.

Belongs here: when to take an inventory. Does not belong here: taking it, which vgpu.node.driver.discover does in a
worker: NVML may hang, and a libnvidia-ml that is replaced on disk would stay loaded in vgpud. After a failure the last
inventory stays on disk; the hook itself refuses a stale one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from vgpu.config import inventory as inventories
from vgpu.config import limits, paths, records
from vgpu.config.clock import since_boot
from vgpu.config.errors import NotKnown, VgpuError
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.daemon.worker import Monitor, Spawn, Worker
from vgpu.node.driver import device_nodes, discover, library_copies
from vgpu.node.service.log import Conditions

FIRST_PAUSE, LAST_PAUSE = 2.0, 60.0  #: seconds between failed attempts: the first pause, doubled up to the last
LEFT_OUT = 300.0  #: seconds until a new attempt for a card that NVML could not use and the module still drives
MAX_NOTES = 20

Signature = tuple[object, ...]


class InventoryRefresher(Monitor):
    """`found` is the inventory in force. It is None if none is usable; then `error` is the reason.

    `look` raises NotKnown or OSError when it cannot look; `found` stays as it was then.

    `attempts` counts the attempts that have ended. While `paused` no inventory is taken, and one is taken at once
    afterwards: the driver may be another.
    """

    LIMIT = 120.0  #: cards without persistence mode take some seconds each
    TOPIC = "inventory"
    TROUBLE = "no inventory"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self.found: Inventory | None = None
        self.error = ""
        self.attempts = 0
        self.paused = False
        self._instances: frozenset[str] = frozenset()
        self._file: tuple[int, ...] = (-1,)
        self._wanted: Signature = ()
        self._taken: Signature = ()
        self._pause = FIRST_PAUSE

    @property
    def state(self) -> str:
        """One of fresh, taking and failed."""
        if self.worker is not None:
            return "taking"
        return "fresh" if self.found is not None else "failed"

    def look(self) -> None:
        """Do one round: it reads a few small files of /proc and a stat."""
        self._read()
        worker = self._finished()
        if worker is not None:
            self._collect(worker)
        signature = self._signature()
        if signature != self._wanted:
            self._wanted, self._pause, self._not_before = signature, FIRST_PAUSE, 0.0
        if self.paused:
            self._taken, self._pause, self._not_before = (), FIRST_PAUSE, 0.0
            return
        needed = self.found is None or signature != self._taken or self._lacks_a_card()
        if needed and self._due():
            self._start(self._work)
            self._taken = self._wanted

    def saw(self, uuids: Collection[str]) -> None:
        """Learn which cards NVML names now: other MIG instances may have the numbers of earlier ones."""
        if uuids:
            self._instances = frozenset(filter(limits.is_instance, uuids))

    def _signature(self) -> Signature:
        """What an inventory depends on, at little cost: driver, root, boot, cards, MIG instances, numbers of the nodes,
        libvcuda.
        """
        proc_root = self.settings.text("driver.proc_root")
        numbers = device_nodes.majors(proc_root)
        return (
            staleness.driver_version(proc_root),
            discover.root_identities(self.settings),
            staleness.boot_id(proc_root, self.proc),
            tuple(device_nodes.minors(proc_root).items()),
            device_nodes.instances(proc_root),
            self._instances,
            tuple(sorted(item for item in numbers.items() if item[0].startswith("nvidia"))),
            self._libvcuda(),
        )

    def _libvcuda(self) -> tuple[str, ...]:
        """The identities of libvcuda's libraries: a package that replaces them needs other copies of them."""
        directory = self.settings.text("paths.libvcuda")
        try:
            return tuple(inventories.identity(os.stat(f"{directory}/{name}")) for name in library_copies.SONAMES)
        except FileNotFoundError:
            return ()

    def _read(self) -> None:
        """Read the inventory again if its file has changed. A stale inventory is not used."""
        run_dir = self.settings.run_dir
        try:
            status = os.stat(paths.inventory(run_dir))
            file: tuple[int, ...] = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            file = ()
        if file == self._file and self.found is None:
            return
        try:
            if file != self._file:
                self.found = inventories.read(run_dir)
                self._file = file
            if self.found is not None:
                staleness.check(self.found, self.settings.text("driver.proc_root"))
        except NotKnown:
            raise
        except VgpuError as error:
            self.found, self.error, self._file = None, str(error), file

    def _lacks_a_card(self) -> bool:
        """Whether to try again for a card that NVML could not use when the inventory was taken."""
        if self.found is None or self.clock() - self._started < LEFT_OUT:
            return False
        known = {card.bus_id for card in self.found.cards}
        return not known.issuperset(device_nodes.minors(self.settings.text("driver.proc_root")))

    def _work(self) -> dict[str, object]:
        """Take the inventory and write it. Runs in the worker."""
        notes: list[str] = []
        found = discover.take(self.settings, notes.append, self.proc)
        records.write(paths.inventory(self.settings.run_dir), found.record())
        return {"notes": notes[:MAX_NOTES], "driver": found.driver_version, "cards": len(found.cards)}

    def _collect(self, worker: Worker) -> None:
        """Use the worker's result."""
        self.attempts += 1
        if worker.error:
            self._failed(worker.error)
            return
        self._file = (-1,)
        self._read()
        self._pause = FIRST_PAUSE
        self.error = ""
        self._report("")
        result = worker.result
        self.conditions.log.info("inventory taken", driver=result.get("driver"), cards=result.get("cards"))
        notes = result.get("notes")
        for note in notes if isinstance(notes, list) else []:
            self.conditions.log.info(f"inventory: {note}")

    def _failed(self, error: str) -> None:
        self.error = error
        self._taken = ()
        self._not_before = self.clock() + self._pause
        self._pause = min(self._pause * 2, LAST_PAUSE)
        self._report(error)

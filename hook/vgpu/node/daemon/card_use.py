"""The monitor of the cards as a whole: the memory in use and the utilization that NVML reports.

Belongs here: calling NVML in a worker, because it may hang, and keeping its answer while it is fresh. Does not belong
here: the use of single processes (vgpu.node.daemon.usage_monitor and foreign_processes).
"""

from __future__ import annotations

from collections.abc import Callable

from vgpu.config.clock import since_boot
from vgpu.config.inventory import Inventory, nvml_of
from vgpu.config.settings import Settings
from vgpu.node.daemon.worker import Monitor, Spawn
from vgpu.node.driver import nvml
from vgpu.node.service.log import Conditions

INTERVAL = 5.0  #: seconds between two calls, if NVML is quick
VALID = 4  #: intervals after which an answer is out of date

Use = tuple[int, "int | None"]  #: bytes in use, and percent of the time in which a kernel ran (None: not supported)


def measured(inventory: Inventory) -> dict[str, object]:
    """NVML's answer as a worker's: [bytes, percent] by card uuid, and notes."""
    notes: list[str] = []
    return {"cards": nvml.card_use(nvml_of(inventory.libraries), notes.append), "notes": notes}


class CardUseMonitor(Monitor):
    """`use` is NVML's last answer by card uuid. A card that fails is not in it."""

    LIMIT = 60.0
    TOPIC = "use of whole cards"
    TROUBLE = "the use of the cards is not known"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        spawn: Spawn,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
    ) -> None:
        super().__init__(settings, conditions, spawn, proc, clock)
        self._use: dict[str, Use] = {}
        self._until = 0.0

    def look(self, inventory: Inventory | None) -> None:
        """Do one round. Without a fresh inventory NVML is not called."""
        worker = self._finished()
        if worker is not None:
            pause = self._pause_after(INTERVAL)
            self._not_before = self.clock() + pause
            self._report(worker.error)
            if not worker.error:
                self._use, self._until = _use_of(worker.result), self.clock() + VALID * pause
        if inventory is not None and inventory.cards and self._due():
            self._start(lambda: measured(inventory))

    def use(self) -> dict[str, Use]:
        return self._use if self.clock() <= self._until else {}


def _use_of(answer: dict[str, object]) -> dict[str, Use]:
    cards = answer.get("cards")
    return {uuid: (row[0], row[1]) for uuid, row in cards.items()} if isinstance(cards, dict) else {}

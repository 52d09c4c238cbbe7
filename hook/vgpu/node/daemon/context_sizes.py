"""Finds out how much of a card the driver takes for a CUDA context, from what vgpud reads anyway.

Belongs here: which of NVML's figures shows a context's size, and writing it into the node's record and inventory. Does
not belong here: reading NVML's lists (vgpu.node.daemon.foreign_processes), and the record (vgpu.config.context_sizes).

There are two sources. A figure of NVML's list counts if one process of a container is on a card, is the same as in the
last look, and has allocated as much before the list as after it. And libvcuda reports in the usage region what a
process had that looked at NVML itself, as each does whose share is small, and also what it was refused. What the driver
holds for a process beyond its allocations is a context, and maybe code. Therefore the least of all figures counts.
Containers report allocations and sizes, so a tenant can make the figure wrong. Only notes and displays depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial

from vgpu.config import context_sizes, paths, records, usage
from vgpu.config import inventory as inventories
from vgpu.config.claims import Claim
from vgpu.config.context_sizes import Seen
from vgpu.config.errors import VgpuError
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.node.daemon import usage_regions
from vgpu.node.daemon.slot_owners import Process
from vgpu.node.daemon.usage_regions import CallsReaders
from vgpu.node.service.log import Conditions

LEAST = 16 << 20  #: bytes: below that a process is about to get its context, or reports wrong allocations
MOST = 1 << 30  #: bytes: above that a report is not believed

Key = tuple[str, str]  #: container and card uuid


class ContextSizes:
    """Call `look` once for each of NVML's lists, and `look_at_reports` in each round.

    `readers` reads the usage regions. `proc` is the root of procfs.
    """

    TOPIC = "context sizes"

    def __init__(self, settings: Settings, conditions: Conditions, readers: CallsReaders, proc: str = "/proc") -> None:
        self.settings = settings
        self.conditions = conditions
        self.readers = readers
        self.proc = proc
        self._last: dict[Key, int] = {}
        self._reports: dict[str, int] = {}  # the least of the last round by card uuid

    def look(
        self,
        figures: dict[Key, tuple[int, int, int]],
        claims: dict[str, Claim],
        processes: Callable[[Claim], list[Process]],
    ) -> None:
        """`figures`: (pid, bytes by NVML, allocated bytes) where one process is on the card."""
        steady = {key: item for key, item in figures.items() if self._last.get(key) == item[0]}
        self._last = {key: pid for key, (pid, _, _) in figures.items()}
        self._learn(
            (uuid, used - allocated, partial(self._beyond, used, claims[name], uuid, processes))
            for (name, uuid), (_, used, allocated) in steady.items()
        )

    def look_at_reports(self, reports: list[dict[str, int]]) -> None:
        """`reports`: what programs had of each card, or were refused, as their container's region says."""
        before, self._reports = self._reports, {}
        for report in reports:
            for uuid, size in report.items():
                if LEAST <= size <= MOST:
                    self._reports[uuid] = min(size, self._reports.get(uuid, size))
        new = {uuid: size for uuid, size in self._reports.items() if size != before.get(uuid)}
        self._learn((uuid, size, partial(int, size)) for uuid, size in new.items())

    def _learn(self, figures: Iterable[tuple[str, int, Callable[[], int]]]) -> None:
        """Take over sizes that are less than the known ones. `figures`: card uuid, at least so much, and how much."""
        listed = list(figures)
        if not listed:
            return
        try:
            found = inventories.read(self.settings.run_dir)
            seen = context_sizes.read(self.settings.state_dir)
        except VgpuError as error:
            self.conditions.set(self.TOPIC, f"not recorded: {error}")
            return
        self.conditions.set(self.TOPIC, "")
        names = {card.uuid: card.name for card in found.cards}
        changed = False
        for uuid, least, measure in listed:
            name = names.get(uuid, "")
            known = seen[name].size if name in seen and seen[name].driver == found.driver_version else 0
            if not name or (known and least >= known):
                continue
            size = measure()
            if size >= LEAST and (not known or size < known):
                seen[name] = Seen(size, found.driver_version)
                mib = -(-size // context_sizes.MIB)
                self.conditions.log.info(f"a CUDA context on {name} takes {mib} MiB")
                changed = True
        # An inventory that was being taken meanwhile has the sizes of before.
        outdated = any(
            context_sizes.size_of(card.name, seen) != (card.context, card.context_source) for card in found.cards
        )
        if changed or outdated:
            self._write(found, seen)

    def _write(self, found: Inventory, seen: dict[str, Seen]) -> None:
        context_sizes.fill(found.cards, seen)
        try:
            os.makedirs(self.settings.state_dir, mode=0o755, exist_ok=True)
            records.write(paths.context_sizes(self.settings.state_dir), context_sizes.record(seen))
            records.write(paths.inventory(self.settings.run_dir), found.record())
        except OSError as error:
            self.conditions.set(self.TOPIC, f"not recorded: {error}")

    def _beyond(self, used: int, claim: Claim, uuid: str, processes: Callable[[Claim], list[Process]]) -> int:
        """`used` less what living processes have allocated; 0 if that cannot be read.

        What ended processes left in the region is none of that.
        """
        answers = self.readers.call(
            [claim],
            lambda claim: usage_regions.held(
                claim.pid, claim.start_time, lambda: processes(claim), self.proc, usage.listed
            ),
        )
        held = answers.get(claim.container)
        return used - held.get(uuid, 0) if isinstance(held, dict) else 0

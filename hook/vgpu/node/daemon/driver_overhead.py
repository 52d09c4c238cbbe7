"""The memory that the driver uses for each container beside its allocations: contexts and code.

Belongs here: the figure, and writing it into the limits files. Only the host can measure it everywhere: a container's
process finds itself in NVML's list only if the driver returns pids of the caller's namespace, while the host sees all
processes and their containers. Does not belong here: calling NVML, which vgpu.node.daemon.foreign_processes does.

NVML's figure is of the past, so this module errs towards a low one. It reads a container's allocations before and after
NVML's list and subtracts the greater value. A figure that has grown counts after a second measurement has confirmed it;
a figure that has fallen counts at once. This module leaves out what the container itself has charged for such memory,
and libvcuda sets that against the figure, so that nothing counts twice. A figure that is not renewed expires.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.config import limits, paths, records, usage
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon.context_sizes import ContextSizes
from vgpu.node.daemon.usage_regions import CallsReaders, region_of

Figures = dict[tuple[str, str], int]  #: bytes by container and card uuid


class DriverOverhead:
    """Call `before` before NVML is called, and `after` with NVML's answer. `proc` is the root of procfs.

    `readers` reads the usage regions. `context_sizes` gets the figures of containers that have one process on a card.
    """

    def __init__(
        self,
        settings: Settings,
        readers: CallsReaders,
        proc: str = "/proc",
        clock: Callable[[], float] = time.time,
        context_sizes: ContextSizes | None = None,
    ) -> None:
        self.settings = settings
        self.readers = readers
        self.proc = proc
        self.clock = clock
        self.context_sizes = context_sizes
        self._allocated: Figures = {}
        self._last: Figures = {}

    def before(self) -> None:
        self._allocated = self._allocations(self._shares())

    def after(self, rows: dict[str, list[tuple[int, bool, int]]], valid: float) -> bool:
        """Write the figures, which count for `valid` seconds. `rows` by card uuid: pid, whether it computes, bytes.

        Returns True if a figure has grown and needs a second measurement, or if a hook held the ledger's lock.
        """
        living = self._shares()
        allocated = self._allocations(living)
        container_processes = ContainerProcesses(living, self.proc)
        processes = _listed(rows, container_processes, living)
        found: Figures = {}
        for key, listed in processes.items():
            if key in self._allocated and key in allocated:
                used = sum(memory for _, memory in listed)
                found[key] = max(0, used - max(self._allocated[key], allocated[key]))
        if self.context_sizes is not None:
            single = {
                key: (*processes[key][0], allocated[key])
                for key in found
                if len(processes[key]) == 1 and self._allocated[key] == allocated[key]
            }
            self.context_sizes.look(single, {claim.container: claim for claim in living}, container_processes.of)
        figures = {key: min(now, self._last.get(key, 0)) for key, now in found.items()}
        self._last = found
        try:
            with Lock(self.settings.run_dir, wait=False):
                for claim in living:
                    self._write(claim, figures, int(self.clock() + valid))
        except BlockingIOError:
            return True
        return any(now > figures[key] for key, now in found.items())

    def _shares(self) -> list[Claim]:
        ledger = Ledger(self.settings, [], self.proc)
        return [item for item in ledger.claims() if item.pid > 0 and not item.exclusive and ledger.lives(item)]

    def _allocations(self, living: list[Claim]) -> Figures:
        """The bytes that each container has allocated.

        A card that is not in the region has no allocations. A container without a readable region is left out.
        """
        regions = self.readers.call(
            living, lambda claim: region_of(claim.pid, claim.start_time, _allocated_or_empty, self.proc)
        )
        found: Figures = {}
        for claim in living:
            region = regions.get(claim.container)
            if region and isinstance(region, dict):
                found.update({(claim.container, card.uuid): region.get(card.uuid, 0) for card in claim.cards})
        return found

    def _write(self, claim: Claim, figures: Figures, until: int) -> None:
        """Write the figures of one container. If the container ends meanwhile, its file is gone, which is no error."""
        path = paths.limits(self.settings.run_dir, claim.container)
        wanted = {
            card.uuid: (figures[claim.container, card.uuid], until)
            for card in claim.cards
            if (claim.container, card.uuid) in figures
        }
        try:
            if any(figure for figure, _ in wanted.values()) or any(map(any, _present(path).values())):
                limits.set_overheads(path, {uuid: item if item[0] else (0, 0) for uuid, item in wanted.items()})
        except (FileNotFoundError, BlockingIOError, VgpuError):  # BlockingIOError: a lease
            return


def _present(path: str) -> dict[str, limits.Overhead]:
    return limits.overheads(records.read_bounded(path, limits.SIZE), path)


def _allocated_or_empty(data: bytes) -> dict[str, int]:
    """The allocations of a readable region that NVML lists with its processes, which are never {}."""
    return {"": 0, **usage.listed(data)}


def _listed(
    rows: dict[str, list[tuple[int, bool, int]]], container_processes: ContainerProcesses, living: list[Claim]
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(pid, bytes by NVML) of each process of each container on each of its cards."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for claim in living:
        pids = {pid for pid, _ in container_processes.of_budget(claim)}
        for card in claim.cards:
            found[claim.container, card.uuid] = [
                (pid, memory) for pid, _, memory in rows.get(card.uuid, []) if pid in pids
            ]
    return found

"""What the driver holds for each container beside its allocations (contexts, code), as only the host can tell.

Belongs here: the figure and its way into the limits files. A container's processes find their own in NVML's list only
where the driver names pids of the asker's namespace; the host sees all of them and knows whose they are.

The figure is of the past, so it is made to err low. What a container has allocated is read before and after NVML is
asked, and the greater counts; a figure that grew counts when a second look has seen it too, one that fell at once. The
container's own bookings of such memory are left out here and set against the figure in libvcuda, so that nothing
counts twice. It ends by itself when nobody renews it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vgpu.config import limits, paths, usage
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon.usage_regions import region_of

Figures = dict[tuple[str, str], int]  #: bytes by container and card uuid


class DriverOverhead:
    """`before` and `after` stand around one look at NVML. `proc` is the root of procfs."""

    def __init__(self, settings: Settings, proc: str = "/proc", clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.proc = proc
        self.clock = clock
        self._allocated: Figures = {}
        self._last: Figures = {}

    def before(self) -> None:
        self._allocated = self._allocations(self._shares())

    def after(self, rows: dict[str, list[tuple[int, bool, int]]], valid: float) -> bool:
        """`rows` by card uuid: pid, whether it computes, bytes. The figures count for `valid` seconds.

        True when one that grew waits for a second look.
        """
        living = self._shares()
        allocated = self._allocations(living)
        found: Figures = {}
        for key, used in _used(rows, ContainerProcesses(living, self.proc), living).items():
            if key in self._allocated and key in allocated:
                found[key] = max(0, used - max(self._allocated[key], allocated[key]))
        figures = {key: min(now, self._last.get(key, 0)) for key, now in found.items()}
        self._last = found
        with Lock(self.settings.run_dir):
            for claim in living:
                self._write(claim, figures, int(self.clock() + valid))
        return any(now > figures[key] for key, now in found.items())

    def _shares(self) -> list[Claim]:
        ledger = Ledger(self.settings, [], self.proc)
        return [item for item in ledger.claims() if item.pid > 0 and not item.exclusive and ledger.lives(item)]

    def _allocations(self, living: list[Claim]) -> Figures:
        """A card that the region does not know has nothing on it; a region that cannot be read says nothing."""
        found: Figures = {}
        for claim in living:
            region = region_of(claim.pid, _allocated_or_empty, self.proc)
            if region:
                found.update({(claim.container, card.uuid): region.get(card.uuid, 0) for card in claim.cards})
        return found

    def _write(self, claim: Claim, figures: Figures, until: int) -> None:
        """A container that ends meanwhile takes its file along."""
        path = paths.limits(self.settings.run_dir, claim.container)
        wanted = {
            card.uuid: (figures[claim.container, card.uuid], until)
            for card in claim.cards
            if (claim.container, card.uuid) in figures
        }
        try:
            if any(figure for figure, _ in wanted.values()) or any(map(any, _present(path).values())):
                limits.set_overheads(path, {uuid: item if item[0] else (0, 0) for uuid, item in wanted.items()})
        except (FileNotFoundError, VgpuError):
            return


def _present(path: str) -> dict[str, limits.Overhead]:
    with open(path, "rb") as stream:
        return limits.overheads(stream.read(limits.SIZE + 1), path)


def _allocated_or_empty(data: bytes) -> dict[str, int]:
    """Never {} for a region that could be read."""
    return {"": 0, **usage.allocated(data)}


def _used(rows: dict[str, list[tuple[int, bool, int]]], population: ContainerProcesses, living: list[Claim]) -> Figures:
    """What NVML says each container's processes hold of each of its cards."""
    found: Figures = {}
    for claim in living:
        pids = {pid for pid, _ in population.of(claim)}
        for card in claim.cards:
            memory = (memory for pid, _, memory in rows.get(card.uuid, []) if pid in pids)
            found[claim.container, card.uuid] = sum(memory)
    return found

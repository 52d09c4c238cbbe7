"""Removes the copies of libvcuda (vgpu.node.driver.library_copies) that no container has and that fit nothing any more.

Belongs here: when a directory of copies may go. A copy is kept while the node has its driver, or its build of libvcuda,
so that neither a return to an older driver nor to an older package has to make it again. After that it is kept for the
containers that may have been started with it: those that had a directory when vgpud saw that the copy fits nothing, or
got one soon after, because their hooks may have read the older inventory. In doubt it stays: it takes a few MiB.
Does not belong here: files of a maker that died (vgpu.node.daemon.reaper).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from vgpu.config import paths
from vgpu.config.clock import since_boot
from vgpu.config.inventory import Inventory
from vgpu.config.settings import Settings
from vgpu.node.service.log import Log

GRACE = 60.0  #: seconds for a hook that read the older inventory
SWEEP = 10.0  #: seconds between two rounds


class Unfit:
    """A directory that fits nothing: the end of its GRACE, and the containers that may have a copy of it.

    `complete`: one round has been after the end, so no other container has one.
    """

    __slots__ = ("complete", "end", "holders")

    def __init__(self, end: float) -> None:
        self.end = end
        self.holders: set[str] = set()
        self.complete = False


class CopyRemoval:
    """`look` does one round, at most every SWEEP seconds."""

    def __init__(self, settings: Settings, log: Log, clock: Callable[[], float] = since_boot) -> None:
        self.settings = settings
        self.log = log
        self.clock = clock
        self._next = 0.0
        self._unfit: dict[str, Unfit] = {}

    def look(self, found: Inventory | None) -> None:
        """Remove what may go. Without an inventory that names a build of libvcuda nothing is known, so all stays."""
        if found is None or not found.copies or self.clock() < self._next:
            return
        self._next = self.clock() + SWEEP
        state = paths.all_limiter_copies(self.settings.state_dir)
        unfit = unfit_copies(self.settings, found)
        self._unfit = {name: self._unfit.get(name) or Unfit(self.clock() + GRACE) for name in unfit}
        containers = set(_names(paths.containers(self.settings.run_dir)))
        for name in unfit:
            self._remove_unused(f"{state}/{name}", name, containers)

    def _remove_unused(self, directory: str, name: str, containers: set[str]) -> None:
        seen = self._unfit[name]
        seen.holders = seen.holders & containers if seen.complete else containers
        seen.complete = self.clock() > seen.end
        if seen.complete and not seen.holders:
            shutil.rmtree(directory)
            self.log.info("removed: a copy of libvcuda that fits neither the driver nor the package", path=directory)


def unfit_copies(settings: Settings, found: Inventory) -> list[str]:
    """The names of the directories of copies that fit neither the driver nor the package. None where `found` names no
    build of libvcuda."""
    if not found.copies:
        return []
    used = {os.path.basename(os.path.dirname(copy.path)) for copy in found.copies if copy.path}
    names = _names(paths.all_limiter_copies(settings.state_dir))
    return [name for name in names if name not in used and not _fits(name, found)]


def _fits(name: str, found: Inventory) -> bool:
    driver, _, build_id = name.rpartition("-")
    return driver == found.driver_version or build_id in {copy.build_id for copy in found.copies}


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []

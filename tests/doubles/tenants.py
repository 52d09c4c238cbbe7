"""A container as a tenant of a card's time, seen from the host: its core schedules and its usage region.

`Tenant.flood` writes into the region what a container's programs write that always want more, so tests of vgpud need
no such programs.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from vgpu.config import core_schedule, limits, usage
from vgpu.config.core_schedule import CoreSchedule

EACH = 0.005


class Tenant:
    """The container whose init is `pid`, with one card."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.used = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def inside(self, path: str) -> Path:
        return Path(f"/proc/{self.pid}/root{path}")

    @property
    def page(self) -> CoreSchedule:
        return self.pages()[0]

    def pages(self) -> list[CoreSchedule]:
        """The core schedules that the container reads at this moment."""
        return core_schedule.decode(self.inside(core_schedule.PATH).read_bytes())[0]

    @property
    def lent(self) -> int:
        page = self.page
        return page.lent_rate if page.lent_until > time.monotonic_ns() else 0

    def report(self, used: int, wanted: int, waited: int) -> None:
        """Report the ns used since the last report, when a program last wanted the card, and when it last waited."""
        self.used += used
        fd = os.open(self.inside(usage.PATH), os.O_RDWR)
        try:
            os.pwrite(fd, usage.CARD.pack(1, limits.uuid_bytes(self.page.uuid)), usage.HEADER.size)
            os.pwrite(fd, usage.TIME.pack(0, *[0] * 7, self.used, wanted, waited, 1000), usage.TIMES_OFFSET)
        finally:
            os.close(fd)

    def flood(self) -> Tenant:
        """From now on report the use of all that the schedule allows, and want more."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._flood, args=(limits_of(self),))
        self._thread.start()
        return self

    def _flood(self, share: int) -> None:
        last = time.monotonic_ns()
        while not self._ended.wait(EACH):
            now = time.monotonic_ns()
            self.report((now - last) * max(share, self.lent) // 100, now, now)
            last = now

    def rest(self) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
            self._thread = None


def limits_of(tenant: Tenant) -> int:
    """The tenant's guaranteed percent."""
    data = tenant.inside(limits.LIMITS_PATH).read_bytes()
    return limits.decode(data)[1][0].cores

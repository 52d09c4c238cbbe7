"""Reads a container's usage region from the host, through the container's root by file descriptor.

Belongs here: opening and reading the region. Does not belong here: decoding it (vgpu.config.usage), and finding the
owners of its slots (vgpu.node.daemon.slot_owners). The container writes the region, so its figures are only what the
container reports.

A program of the container can make each of these steps wait for ever. Therefore vgpud and vgpuctl call this module only
in readers (vgpu.node.daemon.reader), and never under the ledger's lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from vgpu.config import limits, usage
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.hook.linux import procfs
from vgpu.hook.linux.rootfs import Rootfs
from vgpu.node.daemon import slot_owners
from vgpu.node.daemon.slot_owners import Process

UNUSED = 10.0  #: seconds after which a region that nobody asks for is closed

SAME = True  #: a reader's answer: what the container reports is what the reader said last

Figures = TypeVar("Figures")

Init = tuple[int, int]  #: a container's init: pid and start time


class ReadsRegions(Protocol):
    """Reads the regions of containers. Those without a readable region are left out."""

    def read(self, claims: Iterable[Claim], reopen: bool) -> dict[str, Report]: ...

    def stop(self) -> None: ...


class CallsReaders(Protocol):
    """Has `work` called for each claim, in another process. Containers that do not answer are left out."""

    def call(self, claims: Iterable[Claim], work: Callable[[Claim], object]) -> dict[str, object]: ...


class Report:
    """What a container's programs report in its usage region.

    `times` are (used, wanted, waited, longest) by card uuid, as in vgpu.config.usage.CardTime. A card without times was
    never used. `contexts` are what processes had of each card beside their allocations. `counts` are (throttled,
    refusals, waits of each range) by card uuid; {} where libvcuda is of a version that does not count them.
    `locks_refused`: a sandbox refuses the locks by which containers take turns; `waits_refused`: the waits by which
    they are woken; `locks_slow`: those locks take long, so it takes no turns for a while. `changes` are the ns that a
    change of contexts takes, by card uuid, for the card on which that was measured last.
    """

    def __init__(
        self,
        times: dict[str, tuple[int, ...]],
        contexts: dict[str, int],
        counts: dict[str, tuple[int, ...]],
        locks_refused: bool = False,
        waits_refused: bool = False,
        changes: dict[str, int] | None = None,
        locks_slow: bool = False,
    ) -> None:
        self.times = times
        self.contexts = contexts
        self.counts = counts
        self.locks_refused = locks_refused
        self.waits_refused = waits_refused
        self.changes = changes or {}
        self.locks_slow = locks_slow

    def record(self) -> list[object]:
        refused = [self.locks_refused, self.waits_refused]
        return [self.times, self.contexts, self.counts, *refused, self.changes, self.locks_slow]


def report_of(record: object) -> Report | None:
    """The report that Report.record wrote; None if it is none."""
    if not isinstance(record, list):
        return None
    times, contexts, counts, *rest = record
    return Report(_rows(times), contexts, _rows(counts), *rest)


def _rows(record: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {uuid: tuple(row) for uuid, row in record.items()}


class Reports:
    """What a reader said last of each container, because it says only what is new."""

    def __init__(self) -> None:
        self._last: dict[Init, Report] = {}

    def requests(self, claims: Iterable[Claim], reopen: bool) -> list[list[object]]:
        """The requests of Regions.answer. A reader says everything of a region that it opens."""
        return [
            [claim.pid, claim.start_time, reopen or (claim.pid, claim.start_time) not in self._last] for claim in claims
        ]

    def take(self, claims: Iterable[Claim], answers: Iterable[object]) -> dict[str, Report]:
        """The reports by container. What is not asked for is forgotten."""
        before, self._last = self._last, {}
        found = {}
        for claim, answer in zip(claims, answers):
            init = (claim.pid, claim.start_time)
            report = before.get(init) if answer is SAME else report_of(limits.with_own_uuids(answer, claim.cards))
            if report is not None:
                self._last[init] = found[claim.container] = report
        return found


class Regions:
    """The regions of containers, kept open in this process. `proc` is the root of procfs."""

    def __init__(self, proc: str = "/proc") -> None:
        self.proc = proc
        self._open: dict[Init, _Region] = {}
        self._reports = Reports()

    def read(self, claims: Iterable[Claim], reopen: bool) -> dict[str, Report]:
        """The reports by container, read in this process: for tests and benchmarks, whose containers block nothing."""
        asked = list(claims)
        return self._reports.take(asked, map(self.answer, self._reports.requests(asked, reopen)))

    def answer(self, request: object) -> object:
        """A reader's answer: the report's record, SAME, or None. `request`: pid and start time of the init, and whether
        to open the region again, because a program may have made a new one.
        """
        assert isinstance(request, list)
        pid, start_time, reopen = request
        if reopen or (pid, start_time) not in self._open:
            self._close(pid, start_time)
            self._open[pid, start_time] = _Region(open_region(pid, start_time, self.proc))
        region = self._open[pid, start_time]
        before = region.told
        try:
            region.told = region.report()
        except OSError:
            region.told = None
        if region.told is None:
            return None
        return SAME if region.told is before else region.told.record()

    def stop(self) -> None:
        for init in list(self._open):
            self._close(*init)

    def _close(self, pid: int, start_time: int) -> None:
        """Close a region, and all that nobody has asked for lately."""
        late = time.monotonic() - UNUSED
        for init, region in list(self._open.items()):
            if init == (pid, start_time) or region.asked < late:
                self._open.pop(init).close()


class _Region:
    """An open region (-1: there is none)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.asked = 0.0
        self.told: Report | None = None  # what the last answer was
        self._last: tuple[bytes, bytes] = b"", b""
        self._report: Report | None = None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def report(self) -> Report | None:
        self.asked = time.monotonic()
        if self.fd < 0:
            return None
        head = os.pread(self.fd, usage.CARDS_END, 0)
        if not usage.is_region(head):
            return None
        size = usage.FLIGHTS_OFFSET - usage.TIMES_OFFSET
        times = os.pread(self.fd, size, usage.TIMES_OFFSET)
        if len(times) != size:
            return None
        if (head, times) != self._last:  # vgpud asks ten times a second, and an idle container changes nothing
            self._last, self._report = (head, times), _decoded(head, times)
        return self._report


def _decoded(head: bytes, times: bytes) -> Report:
    places = usage.places(head)
    seen = {uuid: usage.time_at(times, place) for uuid, place in places.items()}
    changed, change = usage.change(head)
    return Report(
        {uuid: (item.used, item.wanted, item.waited, item.longest) for uuid, item in seen.items()},
        usage.contexts(head),
        {uuid: (item.throttled, item.refusals, *item.waits) for uuid, item in seen.items()}
        if usage.has_counts(head) else {},
        usage.locks_are_refused(head),
        usage.waits_are_refused(head),
        {uuid: change for uuid, place in places.items() if place == changed and change},
        usage.locks_are_slow(head),
    )  # fmt: skip


def region_of(
    pid: int, start_time: int, decode: Callable[[bytes], dict[str, int]], proc: str = "/proc"
) -> dict[str, int]:
    """Bytes by card uuid in the region of the container with this init; {} if it has no readable region.

    `decode` is a function of vgpu.config.usage.
    """
    fd = open_region(pid, start_time, proc)
    if fd < 0:
        return {}
    try:
        return decode(os.pread(fd, usage.SIZE + 1, 0))
    except (OSError, VgpuError):
        return {}
    finally:
        os.close(fd)


def held(
    pid: int,
    start_time: int,
    processes: Callable[[], list[Process]],
    proc: str = "/proc",
    decode: Callable[[bytes, str, frozenset[int]], dict[str, int]] = usage.decode,
) -> dict[str, int]:
    """The bytes by card uuid that living processes hold, of the container with this init.

    {} if it has no readable region. `decode` is a function of vgpu.config.usage. `processes` lists the container's
    processes; it is called after the region was read, so that it has every process that held something then and still
    lives. What ended processes held stays in the region until another process of the container looks for it, which may
    take long.
    """
    found = _without_ended(pid, start_time, processes, proc, lambda data, ended: decode(data, "usage", ended))
    return found if found is not None else {}


def holdings(
    pid: int, start_time: int, processes: Callable[[], list[Process]], proc: str = "/proc"
) -> dict[str, list[int]] | None:
    """As `held`: [bytes in all, bytes without the driver's own memory] by card uuid. None without a readable region."""

    def decode(data: bytes, ended: frozenset[int]) -> dict[str, list[int]]:
        allocated = usage.allocated(data, "usage", ended)
        return {uuid: [held, allocated[uuid]] for uuid, held in usage.decode(data, "usage", ended).items()}

    return _without_ended(pid, start_time, processes, proc, decode)


def _without_ended(
    pid: int,
    start_time: int,
    processes: Callable[[], list[Process]],
    proc: str,
    decode: Callable[[bytes, frozenset[int]], dict[str, Figures]],
) -> dict[str, Figures] | None:
    """What `decode` makes of the region's bytes and the slots of ended processes; None without a readable region."""
    fd = open_region(pid, start_time, proc)
    if fd < 0:
        return None
    try:
        data = os.pread(fd, usage.SIZE + 1, 0)
        owners = usage.owners(data)
        ended = slot_owners.ended(owners, processes(), os.fstat(fd).st_ino, proc) if owners else frozenset()
        return decode(data, ended)
    except (OSError, VgpuError):
        return None
    finally:
        os.close(fd)


def open_region(pid: int, start_time: int, proc: str = "/proc") -> int:
    """A descriptor that reads the present region of the container with this init; -1 if there is no region.

    An init that lives after its root was opened has owned this root: its pid cannot have gone to another process.
    """
    try:
        root = Rootfs(os.open(f"{proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return -1
    try:
        return root.regular(usage.PATH) if procfs.lives(pid, start_time, proc) else -1
    except (OSError, VgpuError):
        return -1
    finally:
        root.close()

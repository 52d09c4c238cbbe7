"""The processes of shares that use a card without libvcuda, so that no limit holds for them.

Belongs here: finding them among those that NVML lists, and what the hook could not cover in an image. Does not belong
here: calling NVML (vgpu.node.daemon.foreign_processes), and how much they hold (vgpu.node.daemon.memory_watch).

A process that uses a card by libvcuda maps the file that the hook mounted as its libcuda. The claim has the inode of
that file, so an upgrade of libvcuda changes nothing for containers that run. Only the inode's number is compared:
maps shows the device of the overlay or of the file system below it, by the kernel's version. libvcuda loads the
driver's library from REAL_DIR. So one that maps that and another libcuda has libvcuda, too, whatever the file system
says of inodes; a claim of an earlier version has none. A process that hides is found by what it takes: memory_watch,
usage_audit.

A reader looks at the processes, because a container may block it. A process counts when two looks in a row find it,
with the same start time: NVML's list is older than the look, and a process may execute another program in between.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable

from vgpu.config.claims import Claim
from vgpu.config.errors import escaped
from vgpu.config.incidents import UNCOVERED, UNLIMITED_PROCESS
from vgpu.config.limits import REAL_DIR
from vgpu.hook.inject.overlay import INODE
from vgpu.hook.ledger.container_processes import ContainerProcesses
from vgpu.hook.linux import procfs
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.usage_regions import CallsReaders
from vgpu.node.service.log import Conditions

MAX_LOOKED = 64  #: processes in a look, and
MAX_OF_CONTAINER = 8  #: of one container: its reader has a quarter of a second
LOOKS = 2
MAX_MAPS = 8 << 20  #: bytes: the kernel's 65,530 mappings have some 6 MiB
MAX_SHOWN = 3
MAX_NAME = 300

Rows = dict[str, list[tuple[int, bool, int]]]
Process = tuple[int, int]  #: pid, start time


class UnlimitedProcess:
    """A process without libvcuda. `library` is the libcuda that it has loaded, "" where none has that name."""

    def __init__(self, claim: Claim, uuid: str, pid: int, command: str, library: str) -> None:
        self.claim = claim
        self.uuid = uuid
        self.pid = pid
        self.command = command
        self.library = library

    def describe(self) -> str:
        name = f" ({self.claim.name})" if self.claim.name else ""
        has = self.library or "no file with the name of libcuda"
        return (
            f"container {self.claim.container}{name}: process {self.pid} ({self.command}) uses card {self.uuid} "
            f"without libvcuda, so no limit holds for it: it has loaded {has}"
        )


class UnlimitedProcesses:
    """Call `look` with each list of NVML. `present` are the processes found last; `proc` is the root of procfs."""

    TOPIC = "processes without libvcuda"

    def __init__(
        self, conditions: Conditions, readers: CallsReaders, incidents: Incidents, proc: str = "/proc"
    ) -> None:
        self.conditions = conditions
        self.readers = readers
        self.incidents = incidents
        self.proc = proc
        self.present: list[UnlimitedProcess] = []
        self._suspects: dict[Process, tuple[str, int]] = {}  # what each had loaded, and in how many looks in a row
        self._looked: dict[Process, int] = {}  # the look in which a process was looked at last
        self._count = 0

    def look(self, rows: Rows, living: Iterable[Claim], known: frozenset[int]) -> None:
        """`living` are the claims, read after NVML's list. `known` are inodes of libvcuda, for claims without one."""
        shares = [claim for claim in living if claim.ready and not claim.exclusive]
        listed = self._listed(rows, shares)
        self._suspects = self._without_libvcuda(listed, known)
        self.present = [
            UnlimitedProcess(*listed[one], one[0], escaped(procfs.command(one[0], self.proc)), library)
            for one, (library, looks) in self._suspects.items()
            if looks >= LOOKS
        ]
        self._report(shares)

    def of(self, container: str) -> list[UnlimitedProcess]:
        return [one for one in self.present if one.claim.container == container]

    def figures(self) -> list[dict[str, object]]:
        """For the answer to `health`."""
        return [
            {"container": one.claim.container, "card": one.uuid, "pid": one.pid, "command": one.command,
             "library": one.library, "text": one.describe()}
            for one in self.present
        ]  # fmt: skip

    def _listed(self, rows: Rows, shares: list[Claim]) -> dict[Process, tuple[Claim, str]]:
        """The computing processes of the shares on cards of theirs, with claim and card."""
        processes = ContainerProcesses(shares, self.proc, {pid for users in rows.values() for pid, _, _ in users})
        found: dict[Process, tuple[Claim, str]] = {}
        for claim in shares:
            own = dict(processes.of(claim))
            for card in claim.cards:
                for pid, computes, _ in rows.get(card.uuid, []):
                    if computes and pid in own:
                        found.setdefault((pid, own[pid]), (claim, card.uuid))
        return found

    def _without_libvcuda(
        self, listed: dict[Process, tuple[Claim, str]], known: frozenset[int]
    ) -> dict[Process, tuple[str, int]]:
        """The suspects. One that was not looked at now stays as it was."""
        self._count += 1
        chosen: dict[str, list[Process]] = {}
        for process in itertools.islice(sorted(listed, key=lambda one: self._looked.get(one, 0)), MAX_LOOKED):
            chosen.setdefault(listed[process][0].container, []).append(process)
        chosen = {name: some[:MAX_OF_CONTAINER] for name, some in chosen.items()}

        def work(claim: Claim) -> object:
            return [loaded_instead(one, claim.limiter, known, self.proc) for one in chosen[claim.container]]

        claims = {claim.container: claim for claim, _ in listed.values() if claim.container in chosen}
        answers = self.readers.call(claims.values(), work)
        self._looked = {one: last for one, last in self._looked.items() if one in listed}
        found = {one: suspect for one, suspect in self._suspects.items() if one in listed}
        for name, some in chosen.items():
            answer = answers.get(name)
            for process, library in zip(some, answer if isinstance(answer, list) else ()):
                self._looked[process] = self._count
                looks = found.pop(process, ("", 0))[1]
                if isinstance(library, str):
                    found[process] = library, looks + 1
        return found

    def _report(self, shares: list[Claim]) -> None:
        shown = [one.describe() for one in self.present[:MAX_SHOWN]]
        more = len(self.present) - MAX_SHOWN
        self.conditions.set(self.TOPIC, "; ".join(shown) + (f"; and {more} more" if more > 0 else ""))
        for one in self.present:
            count = len(self.of(one.claim.container))
            self.incidents.note(UNLIMITED_PROCESS, one.claim, one.uuid, count, one.library)
        for claim in shares:
            if claim.uncovered and claim.cards:
                lines = claim.uncovered
                self.incidents.note(UNCOVERED, claim, claim.cards[0].uuid, len(lines), lines[0][:MAX_NAME])


def loaded_instead(process: Process, limiter: int, known: frozenset[int], proc: str = "/proc") -> str | None:
    """The file that the process has loaded instead of libvcuda, "" if none has libcuda's name; None if it has libvcuda,
    has ended, or cannot be read.
    """
    pid, started = process
    try:
        with open(f"{proc}/{pid}/maps", "rb") as stream:
            text = stream.read(MAX_MAPS)
    except OSError:
        return None
    ours = {limiter & INODE} if limiter else known
    library = real = ""
    for line in text.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[4].isdigit():
            continue
        path = fields[5]
        if int(fields[4]) & INODE in ours:
            return None
        if path.rpartition(b"/")[2].startswith((b"libcuda.so", b"libcuda-")):  # a wheel has libcuda-1a2b3c4d.so.1
            shown = escaped(os.fsdecode(path))[:MAX_NAME]
            if os.fsencode(REAL_DIR) in path:
                real = shown
            elif not library:
                library = shown
    if not text or len(text) == MAX_MAPS or (library and real) or not procfs.lives(pid, started, proc):
        return None
    return library or real


def inodes(paths: Iterable[str]) -> frozenset[int]:
    """The numbers of the files that are there."""
    found = set()
    for path in paths:
        try:
            found.add(os.stat(path).st_ino & INODE)
        except OSError:
            continue
    return frozenset(found)

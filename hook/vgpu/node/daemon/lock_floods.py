"""Finds containers that hold very many locks on a card's presence file, which makes each lock call there take long.

Belongs here: whom vgpud looks at, and what it says. It looks only while a container says that its lock calls take long
(libvcuda/src/compute/presence.c), because that word costs nothing. /proc/locks names no holder: the pid of such a lock
is -1 there. /proc/<pid>/fdinfo has a line for each lock of an open file. A reader goes over the container's processes,
so that no container can stop vgpud. Who holds the open file by a mapping only, in a socket's queue, or in a thread with
descriptors of its own, is not found.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable

from vgpu.config.claims import Claim
from vgpu.config.incidents import LOCK_FLOOD
from vgpu.config.settings import Settings
from vgpu.hook.ledger import presence
from vgpu.hook.ledger.container_processes import ContainerProcesses, entries
from vgpu.node.daemon.incidents import Incidents
from vgpu.node.daemon.lender import Lender
from vgpu.node.daemon.usage_regions import CallsReaders
from vgpu.node.service.log import Conditions

INTERVAL = 10.0  #: seconds between two looks
WORK = 0.2  #: seconds that a reader works for one look, for all containers
MANY = 1000  #: locks; libvcuda holds three for each process and card, and 3,000 of others do little harm
MAX_FDINFO = 128 << 10  #: bytes of one open file's: more than MANY lines

Key = tuple[str, str]  #: a container and a card's uuid


class LockFloods:
    """Call `look` in each round. `holders` are the locks counted last, by container and card: MANY or more."""

    TOPIC = "lock floods"

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        lender: Lender,
        readers: CallsReaders,
        incidents: Incidents,
        proc: str = "/proc",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.conditions = conditions
        self.lender = lender
        self.readers = readers
        self.incidents = incidents
        self.proc = proc
        self.clock = clock
        self.holders: dict[Key, int] = {}
        self._next = 0.0

    def look(self) -> None:
        shares = [share for share in self.lender.shares.values() if share.claim.ready and share.claim.pid > 0]
        slow = [share.claim for share in shares if share.report and share.report.locks_slow]
        if not slow:
            self.holders = {}
            self.conditions.set(self.TOPIC, "")
        elif self.clock() >= self._next:
            self._next = self.clock() + INTERVAL
            self._find([share.claim for share in shares], {card.uuid for claim in slow for card in claim.cards})
            self._say(slow)

    def _find(self, living: list[Claim], uuids: set[str]) -> None:
        """Count the locks of all containers of these cards."""
        processes = ContainerProcesses(living, self.proc)
        asked = [claim for claim in living if any(card.uuid in uuids for card in claim.cards)]
        random.shuffle(asked)  # a look that takes too long ends before others than the last one
        end = time.monotonic() + WORK

        def count(claim: Claim) -> object:
            files = {card.uuid: presence.path_of(self.settings.run_dir, claim, card.uuid) for card in claim.cards}
            return locks_of((pid for pid, _ in processes.of(claim)), files, end, self.proc)

        answers = self.readers.call(asked, count)
        self.holders = {}
        for claim in asked:
            found = answers.get(claim.container)
            for uuid, number in found.items() if isinstance(found, dict) else ():
                if number >= MANY:
                    self.holders[claim.container, uuid] = number
                    self.incidents.note(LOCK_FLOOD, claim, uuid, number)

    def _say(self, slow: list[Claim]) -> None:
        names = {share.claim.container: _name(share.claim) for share in self.lender.shares.values()}
        holders = [f"{names[container]} on {uuid}" for container, uuid in sorted(self.holders)]
        who = f"{MANY} locks and more are held by {', '.join(holders)}" if holders else "no holder is found"
        self.conditions.set(self.TOPIC, (
            f"file locks take too long for {', '.join(sorted(map(_name, slow)))}, so they take no turns on a card for "
            f"a minute at a time; {who}"
        ))  # fmt: skip


def _name(claim: Claim) -> str:
    return f"{claim.container} ({claim.name})" if claim.name else claim.container


def locks_of(pids: Iterable[int], files: dict[str, str], end: float, proc: str = "/proc") -> dict[str, int]:
    """How many locks the processes hold on each of the files, by card uuid, as far as that is found before `end`.

    A count ends at MANY or soon after. `end` is in seconds of time.monotonic.
    """
    found = dict.fromkeys(files, 0)
    marks = {uuid: _mark(path) for uuid, path in files.items()}
    for pid in pids:
        for name in entries(f"{proc}/{pid}/fdinfo"):
            if time.monotonic() > end or any(number >= MANY for number in found.values()):
                return found
            lines = _lock_lines(f"{proc}/{pid}/fdinfo/{name}")
            for uuid, mark in marks.items():
                found[uuid] += sum(mark in line for line in lines)
    return found


def _mark(path: str) -> bytes:
    """The file in a line of fdinfo."""
    status = os.stat(path)
    return b" %02x:%02x:%d " % (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def _lock_lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as stream:
            return [line for line in stream.read(MAX_FDINFO).splitlines() if line.startswith(b"lock:")]
    except OSError:  # it was closed, or the process has ended
        return []

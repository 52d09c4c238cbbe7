"""Reads usage regions and device cgroups in other processes, so that no container can stop vgpud, nor delay others.

Belongs here: the reader that answers for all containers, and what happens to a container that blocks it. Such a
container is held back: its region is not read, so it counts as one without a readable region, and another reader goes
on with the others. Later a probe tries it again, which nobody waits for. A container has at most one process that it
blocks, and there are at most MAX_LEFT of them. Does not belong here: the region's content (vgpu.node.daemon.
usage_regions), and the forked process (vgpu.node.daemon.reader).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from vgpu.config import limits
from vgpu.config.claims import Claim
from vgpu.node.daemon.reader import Answer, Reader
from vgpu.node.daemon.usage_regions import Regions, Report, Reports
from vgpu.node.service.log import Conditions

LIMIT = 0.25  #: seconds for a container's answer, which takes some 0.1 ms
TOTAL = 0.5  #: seconds for all answers; vgpud does nothing else meanwhile
PROBE_LIMIT = 5.0  #: seconds that a probe waits
NOTICE = 2.0  #: seconds without an answer after which a container is reported
SHORTEST, LONGEST = 2.0, 300.0  #: seconds until the next probe, doubled each time
GOOD = 600.0  #: seconds without a fault after which a container begins again at SHORTEST
MAX_LEFT = 32  #: processes that are blocked at the same time

Key = tuple[str, int, int]


class Held:
    """A container that is held back. `reader` is the process that it blocks, or its probe; None between two probes."""

    def __init__(self, claim: Claim, now: float) -> None:
        self.claim = claim
        self.since = self.due = self.probed = now
        self.pause = 0.0
        self.back = False  # it has answered, and is remembered for its pause only
        self.probing = False
        self.reader: Reader | None = None

    def text(self) -> str:
        name = f"{self.claim.container} ({self.claim.name})" if self.claim.name else self.claim.container
        return (
            f"container {name} blocks the host's reads of its usage region or its cgroup for more than {LIMIT:g} s, "
            "so its use is not known and it borrows nothing; look for FUSE mounts and fanotify in it, or end it"
        )


class RegionReaders:
    """Call `look` in each round with the claims that live. `proc` is the root of procfs."""

    TOPIC = "usage regions"

    def __init__(
        self, conditions: Conditions, proc: str = "/proc", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.conditions = conditions
        self.proc = proc
        self.clock = clock
        self._reader: Reader | None = None
        self._reports = Reports()  # what that reader said
        self._held: dict[Key, Held] = {}
        self._left: list[Reader] = []  # stopped, but the kernel has not let them go

    def read(self, claims: Iterable[Claim], reopen: bool) -> dict[str, Report]:
        """The reports by container. Containers that are held back, or have no readable region, are left out."""
        asked = [claim for claim in claims if not self.holds(claim)]
        if self._reader is None and asked:
            self._reader = self._started(Regions(self.proc).answer)
            self._reports = Reports()
        elif self._reader is not None and not asked:
            self._drop(self._reader)
            self._reader = None
        if self._reader is None:
            return {}
        answers = self._reader.ask(self._reports.requests(asked, reopen), LIMIT, TOTAL)
        if self._reader.stuck:
            self._give_up(self._reader, asked[len(answers)] if len(answers) < len(asked) else None)
            self._reader = None
        return self._reports.take(asked, answers)

    def call(self, claims: Iterable[Claim], work: Callable[[Claim], object]) -> dict[str, object]:
        """The answers of `work`, which a reader calls for each claim. Containers that do not answer are left out."""
        asked = [claim for claim in claims if not self.holds(claim)]
        reader = self._started(lambda index: work(asked[int(str(index))])) if asked else None
        if reader is None:
            return {}
        answers = reader.ask(range(len(asked)), LIMIT, TOTAL)
        self._give_up(reader, asked[len(answers)] if reader.stuck else None)
        return {
            claim.container: limits.with_own_uuids(answer, claim.cards)
            for claim, answer in zip(asked, answers)
            if answer is not None
        }

    def holds(self, claim: Claim) -> bool:
        """Whether the container is held back."""
        held = self._held.get(_key(claim))
        return held is not None and not held.back

    def look(self, living: Iterable[Claim]) -> None:
        """Do one round: forget containers that have ended, and try those again that are held back."""
        self._left = [reader for reader in self._left if not reader.gone()]
        keys = {_key(claim) for claim in living}
        for key, held in list(self._held.items()):
            if key not in keys or (held.back and self.clock() - held.since > GOOD):
                self._forget(key, held)
            elif not held.back:
                self._try(held)
        blocked = f"{len(self._left)} processes are blocked by containers, so no usage region is read"
        self.conditions.set(self.TOPIC, blocked if len(self._left) >= MAX_LEFT else "")

    def stop(self) -> None:
        """Kill all readers, and wait for none."""
        if self._reader is not None:
            self._drop(self._reader)
            self._reader = None
        for key, held in list(self._held.items()):
            self._forget(key, held)

    def _started(self, answer: Answer) -> Reader | None:
        if len(self._left) >= MAX_LEFT:
            return None
        try:
            reader = Reader(answer)
        except OSError as error:  # no process or descriptor is left; the next round tries again
            self.conditions.set(self.TOPIC, f"no usage region is read: {error}")
            return None
        return reader

    def _give_up(self, reader: Reader, claim: Claim | None) -> None:
        """Stop a reader, and hold the container back that has blocked it."""
        self._drop(reader)
        if claim is None or not reader.blocked:
            return
        now = self.clock()
        held = self._held.setdefault(_key(claim), Held(claim, now))
        held.since = now
        held.back = held.probing = False
        held.reader = reader
        held.due = now + held.pause
        held.pause = min(max(held.pause * 2, SHORTEST), LONGEST)

    def _drop(self, reader: Reader) -> None:
        reader.stop()
        if not reader.gone():
            self._left.append(reader)

    def _forget(self, key: Key, held: Held) -> None:
        if held.reader is not None and held.probing:
            self._drop(held.reader)
        del self._held[key]
        self.conditions.set(f"{self.TOPIC} {held.claim.container}", "")

    def _try(self, held: Held) -> None:
        """Go on with a container that is held back: its probe, its pause, and what is reported of it."""
        now = self.clock()
        if held.probing and held.reader is not None:
            if held.reader.poll():
                self._release(held)
                return
            if now - held.probed > PROBE_LIMIT:
                self._drop(held.reader)
                held.probing = False
                held.due = now + held.pause
                held.pause = min(held.pause * 2, LONGEST)
        elif held.reader is not None and held.reader.gone():
            held.reader = None
        elif held.reader is None and now >= held.due:
            self._probe(held)
        if now - held.since >= NOTICE:
            self.conditions.set(f"{self.TOPIC} {held.claim.container}", held.text())

    def _probe(self, held: Held) -> None:
        held.reader = self._started(Regions(self.proc).answer)
        if held.reader is not None:
            held.reader.begin([held.claim.pid, held.claim.start_time, True])
            held.probing, held.probed = True, self.clock()

    def _release(self, held: Held) -> None:
        """Read the container's region again like the others'."""
        if held.reader is not None:
            self._drop(held.reader)
        held.reader, held.probing, held.back, held.since = None, False, True, self.clock()
        self.conditions.set(f"{self.TOPIC} {held.claim.container}", "")


def _key(claim: Claim) -> Key:
    return claim.container, claim.pid, claim.start_time

"""The lender: lends the cards' idle time to containers, as vgpu.node.daemon.lending_policy decides.

Belongs here: reading claims, writing core schedules, and how often. Does not belong here: which container gets how
much, and reading usage regions, which vgpu.node.daemon.region_readers does: the lender opens no file of a container. No
container depends on the lender: a loan that is not renewed expires, and the schedules without loans are in place since
the hook wrote them.

The lender writes schedules under the ledger's lock, and never waits for that lock. It has the regions read without the
lock. If no container may borrow, it does nothing between two rounds. Otherwise it has the regions read every DOZE
seconds, every PACE seconds while a container wants time, and every REST seconds when none has for a while.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

from vgpu.config import core_schedule, limits, paths
from vgpu.config.claims import Claim
from vgpu.config.core_schedule import CoreSchedule
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger import core_schedules
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon.change_costs import ChangeCosts
from vgpu.node.daemon.lending_policy import LendingPolicy, Observation, Tenant
from vgpu.node.daemon.usage_regions import ReadsRegions, Regions, Report

PACE = 0.02  #: seconds
DOZE = 0.1  #: seconds
REST = 0.3  #: seconds
STILL = 5.0  #: seconds in which no container wanted time; after that it looks every REST seconds
SHORTEST_LOOK = 1_000_000_000  #: ns: the reported use is an average over at least this time
MOST_LONGEST = 1 << 30  #: ns: the largest value that is accepted as a tenant's longest kernel

Key = tuple[str, str]


class Share:
    """A living container with a share, with its core schedules open (-1: they cannot be opened).

    `report` is what its region said last; None if it has no readable region, or was not read yet.
    """

    def __init__(self, claim: Claim, run_dir: str) -> None:
        self.claim = claim
        self.path = paths.core_schedules(run_dir, claim.container)
        self.report: Report | None = None
        self.schedule_fd = _opened(self.path)
        self.schedules, self.clock_offset = self._read()
        self.sequences = self.sequences_now()

    def close(self) -> None:
        if self.schedule_fd >= 0:
            os.close(self.schedule_fd)

    def _read(self) -> tuple[list[CoreSchedule], int]:
        if self.schedule_fd < 0:
            return [], 0
        try:
            data = os.pread(self.schedule_fd, core_schedule.SIZE + 1, 0)
            schedules, clock_offset = core_schedule.decode(data, self.path)
        except (OSError, VgpuError):
            return [], 0
        own = limits.own_uuids(self.claim.cards)
        for page in schedules:
            page.uuid = own.get(page.uuid, page.uuid)
        return schedules, clock_offset

    def sequences_now(self) -> list[bytes]:
        """The sequence numbers of the schedules. Every change of a schedule changes its number."""
        first = core_schedule.HEADER.size + core_schedule.SEQUENCE_OFFSET
        size = core_schedule.SEQUENCE.size
        offsets = [first + index * core_schedule.PAGE.size for index in range(len(self.schedules))]
        return [os.pread(self.schedule_fd, size, offset) for offset in offsets]

    def observe(self, now: int) -> dict[str, Observation]:
        """What the container reported last about its cards, in the host's time.

        Without a readable region, the container wants its share. A card that is not in the region was never used.
        """
        cards = [card.uuid for card in self.claim.cards]
        if self.report is None:
            return dict.fromkeys(cards, Observation(0, now, 0, is_known=False))
        times = self.report.times
        return {uuid: self._observation(times[uuid], now) for uuid in cards if uuid in times}

    def _observation(self, times: tuple[int, ...], now: int) -> Observation:
        used, *moments, longest = times
        wanted, waited = (min(at + self.clock_offset, now) if at else 0 for at in moments)
        return Observation(used, wanted, waited, min(longest, MOST_LONGEST))


class Lender:
    """Call `look` in each round, and `tick` when it is `due`.

    `proc` is the root of procfs. `clock` returns ns of CLOCK_MONOTONIC. `regions` reads the usage regions; without it
    this process reads them itself, and a container can stop it.
    """

    def __init__(
        self,
        settings: Settings,
        proc: str = "/proc",
        clock: Callable[[], int] = time.monotonic_ns,
        regions: ReadsRegions | None = None,
    ) -> None:
        self.settings = settings
        self.proc = proc
        self.clock = clock
        self.regions = regions or Regions(proc)
        self.policy = LendingPolicy([])
        self.shares: dict[str, Share] = {}
        self.penalized: dict[str, float] = {}
        self.failed = ""
        self.costs = ChangeCosts()
        self._terms: object = None
        self._stale = True
        self._next = 0.0
        self._awake = clock() / 1e9  # when a container wanted time last
        self._used: dict[Key, tuple[int, int]] = {}
        self._percent: dict[Key, float] = {}

    def look(self) -> None:
        """Do one round: find the containers with a share, check their schedules, and open their regions again."""
        try:
            with Lock(self.settings.run_dir, wait=False):
                self._take_over()
        except BlockingIOError:
            return  # a hook holds the lock, and is probably changing the containers
        self._read_regions(reopen=True)
        self._measure()

    def due(self) -> float | None:
        """Seconds until the next tick; None if no tick is needed before the next round."""
        if not self.policy.borrowers:
            return None
        return max(self._next - self.clock() / 1e9, 0)

    def tick(self) -> None:
        """Decide again, if it is due. If a hook has changed a schedule, find the present containers first."""
        if self.due() != 0:
            return
        if self._stale or any(share.sequences_now() != share.sequences for share in self.shares.values()):
            self.look()
        self._read_regions(reopen=False)
        now = self.clock()
        seen = {
            (name, uuid): observation
            for name, share in self.shares.items()
            for uuid, observation in share.observe(now).items()
        }
        changed = self.policy.decide(now, seen)
        if changed:
            self._lend(changed)
        self._next = self.clock() / 1e9 + self._pause(now / 1e9)

    def _pause(self, now: float) -> float:
        """Seconds until the next look. `now`: seconds of the clock."""
        if self._stale or self.policy.is_awake(int(now * 1e9)):
            self._awake = now
            return PACE
        return DOZE if now - self._awake < STILL else REST

    def contexts(self) -> list[dict[str, int]]:
        """What the containers' processes reported of contexts, by card uuid. A container that has ended since the last
        round is among them.
        """
        return [share.report.contexts for share in self.shares.values() if share.report is not None]

    def penalize(self, parts: dict[str, float]) -> None:
        """From now on lend these containers nothing, and give each this part of its share beside other containers."""
        self.penalized = dict(parts)

    def stop(self) -> None:
        for share in self.shares.values():
            share.close()
        self.shares = {}
        self.regions.stop()

    def without_locks(self) -> str:
        """A sentence about the containers that say that their locks are refused, or ""."""
        effect, calls = "their work mixes with that of others", "fcntl F_OFD_SETLK and F_OFD_GETLK"
        return self._refusal("file locks", effect, calls, lambda report: report.locks_refused)

    def without_waits(self) -> str:
        """A sentence about the containers that say that their waits are refused, or ""."""
        effect, calls = "they come late to their turns", "futex FUTEX_WAIT_BITSET"
        return self._refusal("futexes", effect, calls, lambda report: report.waits_refused)

    def _refusal(self, what: str, effect: str, calls: str, is_said: Callable[[Report], bool]) -> str:
        claims = [share.claim for share in self.shares.values() if share.report and is_said(share.report)]
        names = [f"{claim.container} ({claim.name})" if claim.name else claim.container for claim in claims]
        if not names:
            return ""
        return f"a sandbox refuses the {what} of {', '.join(sorted(names))}, so {effect}; allow {calls} there"

    def figures(self) -> list[dict[str, object]]:
        """For each share and card: percent that the container reports for the last round, and percent lent now."""
        lent = self.policy.lent(self.clock())
        return [
            {
                "container": name, "card": card.uuid, "used": self._percent.get((name, card.uuid)),
                "lent": lent.get(name, 0), "doubted": name in self.penalized,
            }
            for name, share in self.shares.items()
            for card in share.claim.cards
        ]  # fmt: skip

    def _read_regions(self, reopen: bool) -> None:
        """Read the regions anew. `reopen`: a program may have made a new region, and a tenant may have replaced it."""
        ready = [share.claim for share in self.shares.values() if share.claim.ready]
        reports = self.regions.read(ready, reopen)
        for name, share in self.shares.items():
            share.report = reports.get(name)

    # The containers; under the lock

    def _take_over(self) -> None:
        found = Ledger(self.settings, [], self.proc).shares()
        self._reopen(found)
        self.costs.note(share.report.changes for share in self._believed() if share.report)
        terms = ([_tenant(claim) for claim in found], dict(self.penalized), dict(self.costs.by_card))
        moved = any(share.sequences_now() != share.sequences for share in self.shares.values())
        if terms == self._terms and not (moved or self._stale):
            return
        before, self.policy = self.policy, LendingPolicy(*terms)
        self.policy.take_over(before)
        self._terms, self._stale, self._next = terms, False, 0.0
        self._write(self.policy.plain)

    def _believed(self) -> list[Share]:
        return [share for name, share in self.shares.items() if name not in self.penalized]

    def _reopen(self, found: Iterable[Claim]) -> None:
        """Open all schedules again."""
        before, self.shares = self.shares, {}
        for claim in found:
            share = self.shares[claim.container] = Share(claim, self.settings.run_dir)
            known = before.get(claim.container)
            if known is None:
                self._stale = True
            else:
                share.sequences = known.sequences
                share.report = known.report
        for share in before.values():
            share.close()

    # Schedules

    def _lend(self, changed: dict[str, list[CoreSchedule]]) -> None:
        try:
            with Lock(self.settings.run_dir, wait=False):
                if any(share.sequences_now() != share.sequences for share in self.shares.values()):
                    self._stale = True  # a hook has changed the schedules since the decision
                    self.policy.forget()
                else:
                    self._write(changed)
        except BlockingIOError:
            self.policy.forget()

    def _write(self, wanted: dict[str, list[CoreSchedule]]) -> None:
        """Write the schedules that differ from the wanted ones. The caller holds the lock."""
        self.failed = ""
        for name, schedules in wanted.items():
            share = self.shares[name]
            known = {page.uuid: page for page in share.schedules}
            try:
                for page in schedules:
                    if known and known.get(page.uuid) != page:
                        core_schedule.update(share.path, page)
            except FileNotFoundError:
                self._stale = True
            except (OSError, VgpuError) as error:
                self.failed = f"the core schedules of container {name} stay as they were: {error}"
            share.schedules, _ = share._read()
            share.sequences = share.sequences_now()

    # Figures for vgpuctl

    def _measure(self) -> None:
        now = self.clock()
        for name, share in self.shares.items():
            for uuid, seen in share.observe(now).items():
                began, used = self._used.get((name, uuid), (0, 0))
                if now - began < SHORTEST_LOOK:
                    continue
                if began and seen.used >= used:
                    self._percent[name, uuid] = min((seen.used - used) * 100 / (now - began), 100.0)
                self._used[name, uuid] = (now, seen.used)
        living = {(name, card.uuid) for name, share in self.shares.items() for card in share.claim.cards}
        self._used = {key: value for key, value in self._used.items() if key in living}
        self._percent = {key: value for key, value in self._percent.items() if key in living}


def _tenant(claim: Claim) -> Tenant:
    cards = tuple(card.uuid for card in claim.cards)
    limit = max((card.core_limit for card in claim.cards), default=0)
    share = max(core_schedules.held(claim).values(), default=0)
    return Tenant(claim.container, cards, share, limit, claim.priority)


def _opened(path: str) -> int:
    """A descriptor of the host's own file; -1 if there is none. O_NONBLOCK, because a container may hold a lease.

    Where overlays cannot be had a container has the file itself. Nobody gets a lease on a file that another process has
    open for writing (fcntl(2), F_SETLEASE), so it is open for writing for as long as the share lives.
    """
    for access in (os.O_RDWR, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    return -1

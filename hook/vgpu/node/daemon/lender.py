"""The arbiter: lends idle time of the cards among containers (vgpu.node.daemon.lending_policy decides, this does).

Belongs here: claims and usage regions in, card pages out, and how often. Nobody depends on it: a loan that is not
renewed ends by itself, and what a card's containers have without one is in their pages since the hook wrote them. Pages
are written under the ledger's lock, which is never waited for. While nobody may borrow there is nothing to do between
two rounds; while somebody could, a look every DOZE at who wants something, and every PACE when somebody does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from vgpu.config import core_schedule, paths, usage
from vgpu.config.claims import Claim
from vgpu.config.core_schedule import CoreSchedule
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook.ledger import core_schedules
from vgpu.hook.ledger.ledger import Ledger
from vgpu.hook.ledger.lock import Lock
from vgpu.node.daemon.lending_policy import LendingPolicy, Observation, Tenant
from vgpu.node.daemon.usage_regions import open_region

PACE = 0.02
DOZE = 0.1
SHORTEST_LOOK = 1_000_000_000  #: ns over which use is told to people
MOST_LONGEST = 1 << 30  #: ns; a tenant's word

Key = tuple[str, str]


class Share:
    """A living container with a share, held open: its region (-1: none to be read) and its card pages."""

    def __init__(self, claim: Claim, run_dir: str, proc: str) -> None:
        self.claim = claim
        self.path = paths.core_schedules(run_dir, claim.container)
        self.region = open_region(claim.pid, proc) if claim.ready else -1
        self.cards = _opened(self.path)
        self.pages, self.clock_offset = self._read()
        self.places: dict[str, int] = {}
        self.sequences = self.sequences_now()

    def close(self) -> None:
        for fd in (self.region, self.cards):
            if fd >= 0:
                os.close(fd)

    def _read(self) -> tuple[list[CoreSchedule], int]:
        try:
            return (
                core_schedule.decode(os.pread(self.cards, core_schedule.SIZE + 1, 0), self.path)
                if self.cards >= 0
                else ([], 0)
            )
        except (OSError, VgpuError):
            return [], 0

    def sequences_now(self) -> list[bytes]:
        """They move with every change of the pages, whoever makes it."""
        first = core_schedule.HEADER.size + core_schedule.SEQUENCE_OFFSET
        size = core_schedule.SEQUENCE.size
        return [os.pread(self.cards, size, first + index * core_schedule.PAGE.size) for index in range(len(self.pages))]

    def observe(self, now: int) -> dict[str, Observation]:
        """What the container says of its cards, in the host's time. A region that is none says that it wants its share.

        A card that the region does not know was never used.
        """
        cards = [card.uuid for card in self.claim.cards]
        wants = Observation(0, now, 0, is_known=False)
        if self.region < 0:
            return dict.fromkeys(cards, wants)
        if any(uuid not in self.places for uuid in cards):
            head = os.pread(self.region, usage.CARDS_END, 0)
            self.places = usage.places(head)
            if not usage.is_region(head):
                return dict.fromkeys(cards, wants)
        times = os.pread(self.region, usage.FLIGHTS_OFFSET - usage.TIMES_OFFSET, usage.TIMES_OFFSET)
        if len(times) != usage.FLIGHTS_OFFSET - usage.TIMES_OFFSET:
            return dict.fromkeys(cards, wants)
        return {uuid: self._seen(times, self.places[uuid], now) for uuid in cards if uuid in self.places}

    def _seen(self, times: bytes, place: int, now: int) -> Observation:
        said = usage.time_at(times, place)
        wanted, waited = (min(at + self.clock_offset, now) if at else 0 for at in (said.wanted, said.waited))
        return Observation(said.used, wanted, waited, min(said.longest, MOST_LONGEST))


class Lender:
    """`look` in each round, `tick` when `due`. `proc` is the root of procfs, `clock` ns of CLOCK_MONOTONIC."""

    def __init__(self, settings: Settings, proc: str = "/proc", clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.settings = settings
        self.proc = proc
        self.clock = clock
        self.policy = LendingPolicy([])
        self.shares: dict[str, Share] = {}
        self.penalized: dict[str, float] = {}
        self.failed = ""
        self._terms: object = None
        self._stale = True
        self._next = 0.0
        self._used: dict[Key, tuple[int, int]] = {}
        self._percent: dict[Key, float] = {}

    def look(self) -> None:
        """One round: who is there, and whether their pages are as they should be."""
        try:
            with Lock(self.settings.run_dir, wait=False):
                self._take_over()
        except BlockingIOError:
            return  # a hook holds the lock, and changes them most likely
        self._measure()

    def due(self) -> float | None:
        """Seconds until the next tick; None: not before the next round."""
        if not self.policy.borrowers:
            return None
        return max(self._next - self.clock() / 1e9, 0)

    def tick(self) -> None:
        """Decide anew, when it is time to. Pages that somebody else has changed mean that others are there now."""
        if self.due() != 0:
            return
        if self._stale or any(share.sequences_now() != share.sequences for share in self.shares.values()):
            self.look()
        now = self.clock()
        seen = {
            (name, uuid): observation
            for name, share in self.shares.items()
            for uuid, observation in share.observe(now).items()
        }
        pages = self.policy.decide(now, seen)
        if pages:
            self._lend(pages)
        self._next = self.clock() / 1e9 + (PACE if self.policy.is_awake(now) or self._stale else DOZE)

    def penalize(self, parts: dict[str, float]) -> None:
        """From now on lend nothing to these containers, and beside others give them such a part of their share."""
        self.penalized = dict(parts)

    def stop(self) -> None:
        for share in self.shares.values():
            share.close()
        self.shares = {}

    def figures(self) -> list[dict[str, object]]:
        """Of each share and card: percent used in the last round, as it says, and percent lent at this moment."""
        lent = self.policy.lent(self.clock())
        return [
            {
                "container": name, "card": card.uuid, "used": self._percent.get((name, card.uuid)),
                "lent": lent.get(name, 0), "doubted": name in self.penalized,
            }
            for name, share in self.shares.items()
            for card in share.claim.cards
        ]  # fmt: skip

    # Who is there; under the lock

    def _take_over(self) -> None:
        found = Ledger(self.settings, [], self.proc).shares()
        self._reopen(found)
        terms = ([_tenant(claim) for claim in found], dict(self.penalized))
        moved = any(share.sequences_now() != share.sequences for share in self.shares.values())
        if terms == self._terms and not (moved or self._stale):
            return
        before, self.policy = self.policy, LendingPolicy(*terms)
        self.policy.take_over(before)
        self._terms, self._stale, self._next = terms, False, 0.0
        self._write(self.policy.plain)

    def _reopen(self, found: Iterable[Claim]) -> None:
        """A program may have made its region anew, and a tenant may put another one in its place."""
        before, self.shares = self.shares, {}
        for claim in found:
            share = self.shares[claim.container] = Share(claim, self.settings.run_dir, self.proc)
            known = before.get(claim.container)
            if known is None:
                self._stale = True
            else:
                share.sequences = known.sequences
        for share in before.values():
            share.close()

    # Pages

    def _lend(self, pages: dict[str, list[CoreSchedule]]) -> None:
        try:
            with Lock(self.settings.run_dir, wait=False):
                if any(share.sequences_now() != share.sequences for share in self.shares.values()):
                    self._stale = True  # a hook was faster: what was decided is of yesterday
                    self.policy.forget()
                else:
                    self._write(pages)
        except BlockingIOError:
            self.policy.forget()

    def _write(self, pages: dict[str, list[CoreSchedule]]) -> None:
        """Under the lock. Pages that are as they should be are left alone."""
        self.failed = ""
        for name, made in pages.items():
            share = self.shares[name]
            known = {page.uuid: page for page in share.pages}
            try:
                for page in made:
                    if known and known.get(page.uuid) != page:
                        core_schedule.update(share.path, page)
            except FileNotFoundError:
                self._stale = True
            except (OSError, VgpuError) as error:
                self.failed = f"card pages of container {name} stay as they were: {error}"
            share.pages, _ = share._read()
            share.sequences = share.sequences_now()

    # What is told to people

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
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1

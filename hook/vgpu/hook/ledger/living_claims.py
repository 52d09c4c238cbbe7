"""The claims of a node: reading them, and releasing those of containers that have ended.

Belongs here: all that a stop needs of the ledger, and its readers share with it. `ledger.Ledger` adds what a start
needs: grants, cards and their commitments. A stop loads no module of a start, so this one imports none. An unreadable
record becomes a line in `notes`, and never stops another container.
"""

from __future__ import annotations

import os

from vgpu.config import claims, limits, paths, records
from vgpu.config.claims import Claim
from vgpu.config.errors import VgpuError
from vgpu.config.limits import UNLIMITED
from vgpu.config.settings import Settings
from vgpu.hook.ledger import container_directory, core_schedules
from vgpu.hook.ledger.lock import Lock
from vgpu.hook.linux import procfs, staleness

TYPE_CHECKING = False
if TYPE_CHECKING:  # not at run time: it costs the hook's process time
    from collections.abc import Callable, Iterable


class LivingClaims:
    """The claims of one node. `notes` collects messages about damaged records; `proc` is the root of procfs.

    `ended` is the claim that `release` has removed last, `living` the one that it has left to a living init.
    """

    __slots__ = ("boot_id", "ended", "living", "notes", "proc", "run_dir", "state_dir")

    def __init__(self, settings: Settings, proc: str = "/proc") -> None:
        self.run_dir = settings.run_dir
        self.state_dir = settings.state_dir
        self.proc = proc
        self.boot_id = staleness.boot_id(proc)
        self.notes: list[str] = []
        self.ended: Claim | None = None
        self.living: Claim | None = None

    def release(self, container: str) -> bool:
        """Release a container that has ended. False when it has no claim, is ending, or lives anew under its id."""
        with Lock(self.run_dir):
            container_directory.clear(self.run_dir, self.state_dir)
            try:
                claim = claims.read(self.run_dir, container)
            except FileNotFoundError:
                return container_directory.remove(self.run_dir, container)  # an older version's hook was killed
            except VgpuError as error:
                self.notes.append(str(error))
            else:
                if self.lives(claim):
                    self.living = claim
                    return False
                self.ended = claim
            self._end(container)
            return True

    def reap(self, dead: list[Claim]) -> list[Claim]:
        """Release those claims of `dead` that are unchanged, and still dead, under the lock.

        BlockingIOError when a hook holds the lock. The caller tries again later: a dead claim counts nowhere.
        """
        released = []
        with Lock(self.run_dir, wait=False):
            for claim in dead:
                try:
                    found = claims.read(self.run_dir, claim.container)
                except (FileNotFoundError, VgpuError):
                    continue
                same = (found.pid, found.start_time, found.ready) == (claim.pid, claim.start_time, claim.ready)
                if same and not self.lives(found):
                    self._end(claim.container)
                    released.append(claim)
        return released

    def discard(self, container: str, unchanged: Callable[[], bool]) -> bool:
        """Remove a container's directory without a readable claim, if it is `unchanged` under the lock."""
        with Lock(self.run_dir, wait=False):
            try:
                claims.read(self.run_dir, container)
            except (FileNotFoundError, VgpuError):
                if unchanged():
                    self._end(container)
                    return True
        return False

    def clear(self) -> None:
        """Remove what a process that was killed under the lock has left; BlockingIOError as in `reap`."""
        with Lock(self.run_dir, wait=False):
            container_directory.clear(self.run_dir, self.state_dir)

    def reschedule(self, uuids: Iterable[str], shares: list[Claim] | None = None) -> None:
        """Divide the time of these cards again among their `shares`, which it reads if the caller has not. The caller
        holds the lock. It never fails."""
        try:
            self.notes += core_schedules.rewrite(self.run_dir, self.shares() if shares is None else shares, uuids)
        except VgpuError as error:
            self.notes.append(f"the core schedules are unchanged: {error}")

    # Reading

    def claims(self) -> list[Claim]:
        """All readable claims, of living and of dead containers. The limits file stands in for a damaged claim."""
        found = []
        try:
            names = sorted(os.listdir(paths.containers(self.run_dir)))
        except FileNotFoundError:
            return []
        except OSError as error:
            path = paths.containers(self.run_dir)
            raise VgpuError(path, expected="the directory of claims", found=error.strerror) from None
        for name in names:
            if not paths.is_container_id(name):
                continue
            try:
                found.append(claims.read(self.run_dir, name))
            except FileNotFoundError:
                continue  # a hook without the lock has just made or removed it
            except VgpuError as error:
                self._note(str(error))
                found += self._salvaged(name)
        return found

    def shares(self) -> list[Claim]:
        """The claims of living containers that share their cards; of containers with one budget the first."""
        shares = [claim for claim in self.claims() if not claim.exclusive and self.lives(claim)]
        return claims.one_of_each_budget(shares)

    def lives(self, claim: Claim) -> bool:
        """Whether the claim's container lives. A salvaged claim has no pid, and counts until somebody deletes it."""
        if claim.pid < 0:
            return True
        if claim.boot_id and self.boot_id and claim.boot_id != self.boot_id:
            return False  # paths.run survived a reboot, and a pid with its start time may come again
        return procfs.lives(claim.pid, claim.start_time, self.proc)

    def _note(self, text: str) -> None:
        if text not in self.notes:  # the claims are read more than once
            self.notes.append(text)

    def _salvaged(self, container: str) -> list[Claim]:
        """A claim in the place of a damaged one, from the limits file beside it."""
        path = paths.limits(self.run_dir, container)
        try:
            data = records.read_bounded(path, limits.SIZE)
            cards = limits.decode(data, path)[1]
        except (OSError, VgpuError) as error:
            self._note(f"{path}: {error}")
            return []
        whole = any(card.memory == UNLIMITED for card in cards)
        return [Claim(container, -1, 0, cards, whole, None, [], "", 0.0)]

    def _end(self, container: str) -> None:
        """Remove the container's claim, and divide its time among the others."""
        try:
            held = [claims.read(self.run_dir, container)]
        except FileNotFoundError:
            held = []
        except VgpuError:
            held = self._salvaged(container)
        container_directory.remove(self.run_dir, container)
        if any(not claim.exclusive for claim in held):
            self.reschedule(card.uuid for claim in held for card in claim.cards)

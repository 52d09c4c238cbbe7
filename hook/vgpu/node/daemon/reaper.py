"""The reaper: removes the records of containers that ended without a poststop hook, and never those of living ones.

Belongs here: when a claim, a damaged claim or a temporary file may be removed. The ledger does not count a dead claim
(vgpu.hook.ledger.ledger), so nothing depends on the reaper's speed; in doubt it waits. Does not belong here: the
removal itself, which the ledger does under its lock after a second check. Nor do grants: they end with their pod.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from vgpu.config import claims, limits, paths, records
from vgpu.config.claims import Claim
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.limits import UNLIMITED
from vgpu.config.settings import Settings
from vgpu.hook import hooklog
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.service.log import Conditions

GRACE = 5.0  #: seconds that the poststop hook of a dead container has
HOOK_GRACE = 60.0  #: seconds for a claim that is not ready: its hook may still run, and removes the claim itself
DAMAGED_AGE = 600.0  #: seconds since the last change of a damaged claim
SWEEP = 60.0  #: seconds between two searches for temporary files
TEMPORARY_AGE = 600.0  #: seconds; no write takes that long
MAX_MOUNTINFO = 16 << 20
NO_NAMESPACE = errno.EINVAL  #: reading mountinfo of a zombie, or of a process that is exiting, fails with this

Token = tuple[int, int]


class Reaper:
    """`released` counts the removed claims since the start. `last` is the time of the last complete round.

    `proc` is the root of procfs.
    """

    def __init__(
        self,
        settings: Settings,
        conditions: Conditions,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.conditions = conditions
        self.proc = proc
        self.clock = clock
        self.wall_clock = wall_clock
        self.released = 0
        self.last = 0.0
        self.counts: dict[str, int] = {"total": 0, "living": 0, "damaged": 0}
        self._dead_since: dict[tuple[str, int, int], float] = {}
        self._next_sweep = 0.0

    def look(self) -> None:
        """Do one round. VgpuError or OSError if the state cannot be read or changed; the next round tries again."""
        ledger = Ledger(self.settings, [], self.proc)
        found, damaged = self.found()
        dead = [claim for claim in found if not ledger.lives(claim)]
        self.counts = {"total": len(found) + len(damaged), "living": len(found) - len(dead), "damaged": len(damaged)}
        try:
            self._release(ledger, self._ripe(dead))
            self._discard(ledger, damaged)
            due = self.clock() >= self._next_sweep
            if due:
                ledger.clear()
        except BlockingIOError:
            return  # a hook holds the ledger's lock
        if due:
            self._next_sweep = self.clock() + SWEEP
            self._sweep()
        self.last = self.wall_clock()

    # Readable claims

    def _ripe(self, dead: list[Claim]) -> list[Claim]:
        """The claims that this process has seen dead for long enough. It does not trust the times in a claim."""
        now = self.clock()
        keys = {(claim.container, claim.pid, claim.start_time): claim for claim in dead}
        self._dead_since = {key: self._dead_since.get(key, now) for key in keys}
        return [
            claim
            for key, claim in keys.items()
            if now - self._dead_since[key] >= (GRACE if claim.ready else HOOK_GRACE)
        ]

    def _release(self, ledger: Ledger, ripe: list[Claim]) -> None:
        for claim in ledger.reap(ripe) if ripe else []:
            self._log_release(
                claim.container,
                claim.pid,
                f"its init {claim.pid} has died, and no poststop hook released it",
                claim.name,
            )

    def _log_release(self, container: str, pid: int, why: str, name: str = "") -> None:
        self.released += 1
        self.conditions.log.info(f"released: {why}", container=container, pod=name, pid=pid)
        record = {"time": self.wall_clock(), "stage": "reaper", "container": container, "name": name, "pid": pid}
        hooklog.write(self.settings.run_dir, {**record, "notes": [f"released: {why}"], "error": ""})

    # Directories without a readable claim

    def found(self) -> tuple[list[Claim], dict[str, str]]:
        """(the readable claims, the problem of each other container's directory)."""
        found: list[Claim] = []
        damaged: dict[str, str] = {}
        for name in _names(paths.containers(self.settings.run_dir)):
            if not paths.is_container_id(name):
                continue
            try:
                found.append(claims.read(self.settings.run_dir, name))
            except FileNotFoundError:
                damaged[name] = ""  # a hook is writing the claim now, or was killed before it did
            except VgpuError as error:
                damaged[name] = str(error)
        return found, damaged

    def _discard(self, ledger: Ledger, damaged: dict[str, str]) -> None:
        kept = []
        for name, error in damaged.items():
            directory = paths.container(self.settings.run_dir, name)
            token = _token(directory)
            reason = self.reason_to_keep(name, directory, missing=not error)
            if reason:
                kept += [f"{error}; kept: {reason}"] if error else []
            elif ledger.discard(name, lambda at=directory, seen=token: _token(at) == seen):  # type: ignore[misc]
                self._log_release(name, 0, error or "left by a hook that was killed")
        self.conditions.set("damaged claims", "; ".join(kept))

    def reason_to_keep(self, container: str, directory: str, missing: bool) -> str:
        """Why the container might still live, or "" if it cannot.

        vgpu mounts the limits file of a share into its container, and the kernel lists the mounts of every process.
        Runtimes put the container's id into the path of its cgroup. A container with whole cards has no mount of vgpu,
        so without a claim only a person can know whether it lives.
        """
        if self.wall_clock() - _touched(directory) < DAMAGED_AGE:
            return "changed lately"
        if not missing and not _is_share(paths.limits(self.settings.run_dir, container)):
            return f"it held a whole card, or its limits are damaged too; if it is gone, remove {directory}"
        for process in self._processes():
            mounts = _text(f"{self.proc}/{process}/mountinfo")
            if f"/{container}/{paths.LIMITS} " in mounts or f" {paths.mount_source(container)} " in mounts:
                return f"process {process} has its limits mounted"
            if container in _text(f"{self.proc}/{process}/cgroup"):
                return f"process {process} is in a cgroup of that name"
        return ""

    def _processes(self) -> Iterator[str]:
        return (name for name in _names(self.proc) if name.isdigit())

    # Temporary files

    def _sweep(self) -> None:
        for path in self.temporary_files():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self.conditions.log.info("removed: a temporary file of a writer that died", path=path)

    def temporary_files(self) -> Iterator[str]:
        """The temporary files of writers that died between write and rename."""
        for directory in _written(self.settings.run_dir, self.settings.state_dir):
            for name in _names(directory):
                path = f"{directory}/{name}"
                if _is_temporary(name) and self.wall_clock() - _touched(path) > TEMPORARY_AGE and _is_file(path):
                    yield path


def _written(run: str, state: str) -> list[str]:
    """Every directory in which some part of vgpu writes records."""
    many = (paths.containers(run), paths.all_limiter_copies(state))
    below = [f"{directory}/{name}" for directory in many for name in _names(directory)]
    return [
        run, paths.metrics(run), paths.pods(run), state, paths.grants(state), paths.runtimes(state),
        paths.prepared_claims(state), *many, *below,
    ]  # fmt: skip


def _is_temporary(name: str) -> bool:
    """Whether records.write_bytes gives its temporary files such a name: .<name>.<pid>.tmp."""
    parts = name.rsplit(".", 2)
    return name.startswith(".") and len(parts) == 3 and parts[1].isdigit() and parts[2] == "tmp"


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _is_share(path: str) -> bool:
    try:
        cards = limits.decode(records.read_bounded(path, limits.SIZE), path)[1]
    except (OSError, VgpuError):
        return False
    return bool(cards) and all(card.memory != UNLIMITED for card in cards)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _written_by_its_hook(directory: str) -> list[str]:
    """The files in a claim's directory except the core schedules, which change whenever a neighbour starts or ends."""
    return [f"{directory}/{name}" for name in _names(directory) if name != paths.CORE_SCHEDULES]


def _touched(path: str) -> float:
    """The time of the latest change of a file, or of a directory and the files in it; the time now if it is gone."""
    times = []
    for item in (path, *_written_by_its_hook(path)):
        try:
            times.append(os.lstat(item).st_mtime)
        except OSError:
            return time.time()
    return max(times)


def _token(directory: str) -> Token:
    """A value that changes with every change below a claim's directory."""
    try:
        return os.stat(directory).st_ino, max(
            os.stat(item).st_mtime_ns for item in (directory, *_written_by_its_hook(directory))
        )
    except OSError:
        return -1, -1


def _text(path: str) -> str:
    """The text of a file of a process, or "" if the process is gone."""
    try:
        return os.fsdecode(records.read_bounded(path, MAX_MOUNTINFO))
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if error.errno == NO_NAMESPACE:
            return ""
        raise

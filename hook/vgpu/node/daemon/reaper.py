"""The reaper: takes away what containers left behind whose end nobody told, and never a living one's.

Belongs here: when a claim, a damaged claim or a temporary file may go. Nothing depends on its speed: a dead claim
counts nowhere (vgpu.hook.ledger.ledger), so in doubt it waits. The removal itself is the ledger's, under its lock, after
looking again. Grants are not its business: they end with their pod.
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

GRACE = 5.0  #: seconds that a dead container's poststop has
HOOK_GRACE = 60.0  #: as long as its hook may still be at work: it takes its claim back itself
DAMAGED_AGE = 600.0  #: seconds since a damaged claim was last touched
SWEEP = 60.0  #: seconds between two looks for temporary files
TEMPORARY_AGE = 600.0  #: no write lasts that long
MAX_MOUNTINFO = 16 << 20
NO_NAMESPACE = errno.EINVAL  #: mountinfo of a process that is just exiting, or a zombie

Token = tuple[int, int]


class Reaper:
    """`released` counts since the start; `last` is the time of the last whole look. `proc` is the root of procfs."""

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
        """One round; VgpuError or OSError when the state cannot be read or changed, and the next round tries again."""
        ledger = Ledger(self.settings, [], self.proc)
        found, damaged = self._found()
        dead = [claim for claim in found if not ledger.lives(claim)]
        self.counts = {"total": len(found) + len(damaged), "living": len(found) - len(dead), "damaged": len(damaged)}
        try:
            self._release(ledger, self._ripe(dead))
            self._discard(ledger, damaged)
        except BlockingIOError:
            return  # a hook holds the ledger's lock
        if self.clock() >= self._next_sweep:
            self._next_sweep = self.clock() + SWEEP
            self._sweep()
        self.last = self.wall_clock()

    # Readable claims

    def _ripe(self, dead: list[Claim]) -> list[Claim]:
        """Those that have been dead for long enough, in our own observation: no clock of theirs is trusted."""
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
            self._tell(claim.container, claim.pid, f"its init {claim.pid} is dead and nobody told", claim.name)

    def _tell(self, container: str, pid: int, why: str, name: str = "") -> None:
        self.released += 1
        self.conditions.log.info(f"released: {why}", container=container, pod=name, pid=pid)
        record = {"time": self.wall_clock(), "stage": "reaper", "container": container, "pid": pid}
        hooklog.write(self.settings.run_dir, {**record, "notes": [f"released: {why}"], "error": ""})

    # Directories without a readable claim

    def _found(self) -> tuple[list[Claim], dict[str, str]]:
        """(readable claims, what is wrong with each other container's directory)."""
        found: list[Claim] = []
        damaged: dict[str, str] = {}
        for name in _names(paths.containers(self.settings.run_dir)):
            if not paths.is_container_id(name):
                continue
            try:
                found.append(claims.read(self.settings.run_dir, name))
            except FileNotFoundError:
                damaged[name] = ""  # a hook's work of this moment, or left by one that was killed
            except VgpuError as error:
                damaged[name] = str(error)
        return found, damaged

    def _discard(self, ledger: Ledger, damaged: dict[str, str]) -> None:
        kept = []
        for name, error in damaged.items():
            directory = paths.container(self.settings.run_dir, name)
            token = _token(directory)
            doubt = self._doubt(name, directory, missing=not error)
            if doubt:
                kept += [f"{error}; kept: {doubt}"] if error else []
            elif ledger.discard(name, lambda at=directory, seen=token: _token(at) == seen):  # type: ignore[misc]
                self._tell(name, 0, error or "left by a hook that was killed")
        self.conditions.set("damaged claims", "; ".join(kept))

    def _doubt(self, container: str, directory: str, missing: bool) -> str:
        """Why the container might live, "" when that is ruled out.

        A share's limits file is mounted into it, which the kernel tells for every process; runtimes put the id into
        the cgroup's path. A whole card leaves no mount of ours: without its claim only a person can say.
        """
        if self.wall_clock() - _touched(directory) < DAMAGED_AGE:
            return "changed lately"
        if not missing and not _is_share(paths.limits(self.settings.run_dir, container)):
            return f"it held a whole card, or its limits are damaged too; if it is gone, remove {directory}"
        for process in self._processes():
            if f"/{container}/{paths.LIMITS} " in _text(f"{self.proc}/{process}/mountinfo"):
                return f"process {process} has its limits mounted"
            if container in _text(f"{self.proc}/{process}/cgroup"):
                return f"process {process} is in a cgroup of that name"
        return ""

    def _processes(self) -> Iterator[str]:
        return (name for name in _names(self.proc) if name.isdigit())

    # Temporary files

    def _sweep(self) -> None:
        """Temporary files of writers that died between write and rename."""
        run, state = self.settings.run_dir, self.settings.state_dir
        containers = [f"{paths.containers(run)}/{name}" for name in _names(paths.containers(run))]
        for directory in (run, state, paths.grants(state), *containers):
            for name in _names(directory):
                path = f"{directory}/{name}"
                if _is_temporary(name) and self.wall_clock() - _touched(path) > TEMPORARY_AGE and _is_file(path):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                    self.conditions.log.info("removed: a temporary file of a writer that died", path=path)


def _is_temporary(name: str) -> bool:
    """As records.write_bytes names them: .<name>.<pid>.tmp."""
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
    """What is in a claim's directory, but the card pages, which change with everybody who comes and goes."""
    return [f"{directory}/{name}" for name in _names(directory) if name != paths.CORE_SCHEDULES]


def _touched(path: str) -> float:
    """The latest change of a file, or of a directory or the files in it; now (as far as anybody can tell) if gone."""
    times = []
    for item in (path, *_written_by_its_hook(path)):
        try:
            times.append(os.lstat(item).st_mtime)
        except OSError:
            return time.time()
    return max(times)


def _token(directory: str) -> Token:
    """Changes with every change below a claim's directory."""
    try:
        return os.stat(directory).st_ino, max(
            os.stat(item).st_mtime_ns for item in (directory, *_written_by_its_hook(directory))
        )
    except OSError:
        return -1, -1


def _text(path: str) -> str:
    """A file of a process; "" when the process is gone: then it holds nothing either."""
    try:
        return os.fsdecode(records.read_bounded(path, MAX_MOUNTINFO))
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as error:
        if error.errno == NO_NAMESPACE:
            return ""
        raise

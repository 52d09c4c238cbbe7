"""How long containers have held how much: for each container its core seconds and memory byte seconds, for chargeback.

Belongs here: the sums, which go on over restarts of vgpud and of the node, and the log of all times with their amounts.
Nothing that a container says is in them: the amounts are those of its claim, from the start of its init to its end. A
claim that vgpud sees no more ended when the stop hook released it, by that hook's line in hook.log. Without such a line
it ended when vgpud saw it last. Of containers with one budget the oldest holds it, and the others hold nothing. Not
here: names (vgpu.node.daemon.container_names), the report (vgpu.node.ctl.report).

A core second is one second of a whole card. A record in the run directory follows each round, before the round is
shown, so that no restart of vgpud takes anything back. A copy in the state directory follows each SAVE seconds. After a
reboot whatever was held at the last copy counts for SAVE seconds more, which is the most that was shown and not copied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass
from typing import Any

from vgpu.config import paths, records
from vgpu.config.claims import Claim, one_of_each_budget
from vgpu.config.clock import since_boot
from vgpu.config.errors import VgpuError
from vgpu.config.limits import UNLIMITED
from vgpu.config.request import WHOLE_CARD
from vgpu.config.settings import Settings
from vgpu.hook.linux import staleness
from vgpu.node.daemon.container_names import Labels
from vgpu.node.daemon.hook_lines import HookLines

VERSION = 1
SAVE = 60.0  #: seconds between two copies in the state directory
LATE = 60.0  #: seconds in which a released container's line in hook.log has to come
KEPT = 3600.0  #: seconds for which the sums of a container that has ended are shown
MOST = 2000  #: sums; those that ended first go first
MAX_RECORD = 64 << 20
MAX_LOG = 16 << 20  #: bytes of held-time.log, some 50,000 containers, before it becomes held-time.log.1
TICKS = os.sysconf("SC_CLK_TCK")

Key = tuple[str, int, int]  #: container, init's pid and start time
Names = tuple[str, str, str]  #: namespace, pod, container


@dataclass
class Held:
    """What a container holds since `began` and is counted for up to `until`, both in seconds since boot.

    `since` is `began` in seconds since 1970. `cores` are percent of a card, `memory` is bytes, both of all its cards
    together. `gone` is when vgpud first saw that it lives no more, 0 while it does.
    """

    container: str
    pid: int
    start_time: int
    namespace: str
    pod: str
    name: str
    cores: int
    memory: int
    since: float
    began: float
    until: float
    gone: float = 0.0

    @property
    def key(self) -> Key:
        return self.container, self.pid, self.start_time

    @property
    def names(self) -> Names:
        return self.namespace, self.pod, self.name

    @property
    def amounts(self) -> tuple[int, int]:
        return self.cores, self.memory

    def line(self) -> dict[str, object]:
        """The line of the log: one time with the same amounts."""
        return {
            "container": self.container, "pid": self.pid, "start_time": self.start_time, "began": self.began,
            "namespace": self.namespace, "pod": self.pod, "name": self.name, "cores": self.cores,
            "memory": self.memory, "start": self.since, "end": self.since + self.until - self.began,
        }  # fmt: skip


@dataclass
class Sum:
    """What one container has held so far. `last` is when it last held anything, in seconds since 1970."""

    namespace: str
    pod: str
    container: str
    core_seconds: float = 0.0
    memory_byte_seconds: float = 0.0
    last: float = 0.0

    @property
    def names(self) -> Names:
        return self.namespace, self.pod, self.container


class HeldTime:
    """Call `look` in each round; `sums` are those of the last record that was written. `proc` is the root of procfs.

    OSError when the record cannot be written: `sums` stay as they are then, and the next round tries again.
    """

    def __init__(
        self,
        settings: Settings,
        proc: str = "/proc",
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.boot_id = staleness.boot_id(proc)
        self.clock = clock
        self.wall_clock = wall_clock
        self.labels = Labels(settings.run_dir)
        self.problem = ""  # why sums from before could not be read
        self._open: dict[Key, Held] = {}
        self._sums: dict[Names, Sum] = {}
        self._lines: list[dict[str, object]] = []  # for the log
        self._copied = float("-inf")  # the copy of before a restart may be old
        self._written: dict[str, object] = {}
        self.log = HookLines(settings.run_dir)
        self._load()
        self.sums: list[Sum] = list(self._sums.values())

    def look(self, claims: list[Claim], lives: Callable[[Claim], bool], sizes: dict[str, int]) -> None:
        """Count up to now. `claims` are all of the node, `sizes` the bytes of its cards by uuid."""
        now = self.clock()
        ended = self._stopped(now, sizes)
        names = self.labels.of(claims)
        alive = {_key(claim): lives(claim) for claim in claims}
        holding = [one for one in claims if one.ready and one.pid > 0 and _key(one) not in ended and alive[_key(one)]]
        counted = {_key(claim) for claim in one_of_each_budget(holding)}
        for claim in holding:
            amounts = _amounts(claim, sizes) if _key(claim) in counted else (0, 0)
            self._hold(_key(claim), names[claim.container], amounts, now)
        self._miss(alive, now)
        self._write(now)

    def close(self) -> None:
        """Copy the sums at the end of vgpud, so that a reboot in good order loses nothing."""
        self._write(self.clock(), orderly=True)

    # Counting

    def _hold(self, key: Key, names: Names, amounts: tuple[int, int] | None, now: float) -> None:
        held = self._open.get(key)
        if held is None:
            if amounts is not None:  # else the size of a whole card is not known yet
                self._begin(key, names, amounts, min(key[2] / TICKS, now), now)
            return
        self._count(held, now)
        if amounts not in (None, held.amounts):
            assert amounts is not None
            self._lines.append(held.line())
            self._begin(key, held.names, amounts, now, now)

    def _begin(self, key: Key, names: Names, amounts: tuple[int, int], began: float, now: float) -> None:
        since = self.wall_clock() - (self.clock() - began)
        self._open[key] = held = Held(*key, *names, *amounts, since, began, began)
        self._count(held, now)

    def _count(self, held: Held, until: float) -> None:
        """Add what `held` has held up to `until`."""
        seconds = until - held.until
        if seconds <= 0:
            return
        one = self._sums.setdefault(held.names, Sum(*held.names))
        one.core_seconds += held.cores / WHOLE_CARD * seconds
        one.memory_byte_seconds += held.memory * seconds
        one.last = self.wall_clock()
        held.until = until

    def _end(self, held: Held) -> None:
        self._lines.append(held.line())
        self._open.pop(held.key, None)

    def _stopped(self, now: float, sizes: dict[str, int]) -> set[Key]:
        """End the containers that stop hooks have released, also those that vgpud has never seen."""
        ended = set()
        for line in self.log.new():
            try:
                entry = records.decode_object(line, self.log.path)
                key, end = self._released(entry, now, sizes)
            except (VgpuError, KeyError, TypeError, ValueError):
                continue  # another line
            ended.add(key)
            held = self._open.get(key)
            if held is not None:
                self._count(held, min(end, held.gone or end))
                self._end(held)
        return ended

    def _released(self, entry: dict[str, Any], now: float, sizes: dict[str, int]) -> tuple[Key, float]:
        """The container of a stop's line, and its end. One that vgpud has not seen begins to be counted."""
        found: dict[str, Any] = entry["held"]
        key = (str(entry["container"]), int(found["pid"]), int(found["start_time"]))
        end = min(float(found["ended"]), now)
        if found["boot_id"] != self.boot_id or not found["ready"]:
            raise ValueError("another boot, or a start that failed")
        if key not in self._open:
            amounts = _sum_of([(str(uuid), int(cores), int(memory)) for uuid, cores, memory in found["cards"]], sizes)
            names = self.labels.of_line(str(entry["name"]), str(found["pod_uid"]), key[0])
            began = key[2] / TICKS
            if amounts is not None and 0 < began < end:
                self._begin(key, names, amounts, began, began)
        return key, end

    def _miss(self, alive: dict[Key, bool], now: float) -> None:
        """Note which containers live no more, and end those that no hook has released."""
        for held in list(self._open.values()):
            if alive.get(held.key):
                continue
            held.gone = held.gone or now
            if held.key not in alive and now - held.gone >= LATE:
                self._end(held)

    # Records

    def _load(self) -> None:
        """Go on from the record of the last round, or of the last copy."""
        found: dict[str, Any] | None = None
        for path in (paths.held_time(self.settings.run_dir), paths.held_time(self.settings.state_dir)):
            try:
                found = records.read(path, limit=MAX_RECORD)
                self._take(found)
            except FileNotFoundError:
                continue
            except (VgpuError, KeyError, TypeError, ValueError) as error:
                self.problem = f"{path}: what containers have held is not counted on from there: {error}"
                continue
            self.problem = ""
            return

    def _take(self, found: dict[str, Any]) -> None:
        if found["version"] != VERSION:
            raise VgpuError("record", expected=f"version {VERSION}", found=found["version"])
        kept = {one.names: one for one in (Sum(*row) for row in found["sums"])}
        held = {one.key: one for one in (Held(**row) for row in found["held"])}
        place = (int(found["log"][0]), int(found["log"][1]))
        self._sums, self._open = kept, held
        self.log = HookLines(self.settings.run_dir, place)
        if found["boot_id"] != self.boot_id:
            for one in list(held.values()):
                self._count(one, one.until + (0.0 if found["orderly"] else SAVE))
                self._end(one)

    def _write(self, now: float, orderly: bool = False) -> None:
        self._forget()
        self._write_log()
        record = {
            "version": VERSION, "boot_id": self.boot_id, "orderly": orderly, "log": list(self.log.place),
            "sums": [list(astuple(one)) for one in self._sums.values()],
            "held": [asdict(one) for one in self._open.values()],
        }  # fmt: skip
        if record == self._written:
            return
        if now - self._copied >= SAVE or now < self._copied or orderly:
            os.makedirs(self.settings.state_dir, mode=0o755, exist_ok=True)
            records.write(paths.held_time(self.settings.state_dir), record)
            self._copied = now
        records.write(paths.held_time(self.settings.run_dir), record)
        self._written = record
        self.sums = [Sum(*astuple(one)) for one in self._sums.values()]

    def _forget(self) -> None:
        """Drop the sums of containers that ended long ago."""
        living, oldest = {held.names for held in self._open.values()}, self.wall_clock() - KEPT
        ended = sorted((one.last, names) for names, one in self._sums.items() if names not in living)
        more = len(self._sums) - MOST
        for at, (last, names) in enumerate(ended):
            if last < oldest or at < more:
                del self._sums[names]

    def _write_log(self) -> None:
        if not self._lines:
            return
        os.makedirs(self.settings.state_dir, mode=0o755, exist_ok=True)
        path = paths.held_log(self.settings.state_dir)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(fd).st_size
            text = "".join(records.encode(line) + "\n" for line in self._lines)
            try:
                os.write(fd, text.encode("ascii"))
            except OSError:
                os.ftruncate(fd, size)
                raise
            if size > MAX_LOG:
                os.rename(path, path + ".1")
        finally:
            os.close(fd)
        self._lines = []


def _key(claim: Claim) -> Key:
    return claim.container, claim.pid, claim.start_time


def _amounts(claim: Claim, sizes: dict[str, int]) -> tuple[int, int] | None:
    return _sum_of(((card.uuid, *claim.committed(card)) for card in claim.cards), sizes)


def _sum_of(cards: Iterable[tuple[str, int, int]], sizes: dict[str, int]) -> tuple[int, int] | None:
    """(percent, bytes) of all cards; None where one is held whole, and its size is not known."""
    cores = memory = 0
    for uuid, percent, size in cards:
        if size == UNLIMITED and uuid not in sizes:
            return None
        cores += percent
        memory += sizes[uuid] if size == UNLIMITED else size
    return cores, memory

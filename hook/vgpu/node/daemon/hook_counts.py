"""Counts what hooks did, from the lines that they add to hook.log while vgpud runs.

Belongs here: following the file through its renaming, and the counts. Lines from before vgpud's start do not count, so
the counts begin at 0 with each vgpud. A line that is none is left out.
"""

from __future__ import annotations

import contextlib
import os

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError

MAX_READ = 4 << 20  #: bytes in one round; a hook's line has some hundred
BUCKETS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)  #: seconds; the last bucket of all has no bound
STEPS = frozenset({
    "state", "identity", "configuration", "authorization", "inventory", "allocation", "root file system", "plan",
    "mount", "device cgroup", "record", "release", "report",
})  # fmt: skip
OTHER = "other"
STARTING = ("prestart", "createRuntime")


class HookCounts:
    """Call `look` in each round; `record` has the counts."""

    def __init__(self, run_dir: str) -> None:
        self.path = paths.hook_log(run_dir)
        self.starts = 0
        self.stops = 0
        self.refusals = dict.fromkeys((*sorted(STEPS), OTHER), 0)  # from the start: a series that comes late misses one
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self._inode, self._offset = self._end()
        self._rest = b""

    def look(self) -> None:
        """Count the new lines."""
        data = self._rest + self._new()
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_READ:
            self._rest = b""
        for line in lines:
            self._count(line)

    def record(self) -> dict[str, object]:
        return {
            "starts": self.starts, "stops": self.stops, "refusals": dict(self.refusals),
            "seconds": {"bounds": list(BUCKETS), "buckets": list(self.buckets), "sum": self.seconds},
        }  # fmt: skip

    def _end(self) -> tuple[int, int]:
        try:
            status = os.stat(self.path)
        except OSError:
            return 0, 0
        return status.st_ino, status.st_size

    def _new(self) -> bytes:
        """What was written since: first to the file of before, if hooks have renamed it meanwhile."""
        inode, size = self._end()
        if inode == self._inode:
            if size <= self._offset:
                return b""
            return self._read(self.path)
        old = self._read(self.path + ".1") if self._inode else b""
        self._inode, self._offset = inode, 0
        return old + (self._read(self.path) if inode else b"")

    def _read(self, path: str) -> bytes:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                data = os.pread(file.fileno(), MAX_READ, self._offset)
                self._offset += len(data)
                return data
        return b""

    def _count(self, line: bytes) -> None:
        try:
            entry = records.decode_object(line, self.path)
        except VgpuError:
            return
        error, stage = entry.get("error"), entry.get("stage")
        if stage == "poststop":
            self.stops += 1
        if stage not in STARTING:  # as vgpud's own lines about dead containers
            return
        self.starts += 1
        if isinstance(error, str) and error:
            step = error.partition(":")[0]
            step = step if step in STEPS else OTHER
            self.refusals[step] += 1
        seconds = entry.get("seconds")
        if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0:
            self.seconds += seconds
            self.buckets[next((n for n, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1

"""Counts what hooks did, from the lines that they add to hook.log while vgpud runs.

Belongs here: the counts. Lines from before vgpud's start do not count, so the counts begin at 0 with each vgpud. A line
that is none is left out. Not here: following the file (vgpu.node.daemon.hook_lines).
"""

from __future__ import annotations

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.node.daemon.hook_lines import HookLines

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
        self.lines = HookLines(run_dir)
        self.starts = 0
        self.stops = 0
        self.refusals = dict.fromkeys((*sorted(STEPS), OTHER), 0)  # from the start: a series that comes late misses one
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def look(self) -> None:
        """Count the new lines."""
        for line in self.lines.new():
            self._count(line)

    def record(self) -> dict[str, object]:
        return {
            "starts": self.starts, "stops": self.stops, "refusals": dict(self.refusals),
            "seconds": {"bounds": list(BUCKETS), "buckets": list(self.buckets), "sum": self.seconds},
        }  # fmt: skip

    def _count(self, line: bytes) -> None:
        try:
            entry = records.decode_object(line, self.lines.path)
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

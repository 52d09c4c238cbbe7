"""A quota of CPU time for a tenant's processes, as `cpu.max` gives it: a control group of version 2 or 1."""

from __future__ import annotations

import contextlib
from pathlib import Path

PERIOD_US = 100_000
REALTIME_US = 100_000  #: of each second
GROUPS = Path("/sys/fs/cgroup")


class Quota:
    """The processes that were added get so many percent of one CPU together, in each tenth of a second."""

    def __init__(self, name: str, percent: int, groups: Path = GROUPS) -> None:
        quota = percent * PERIOD_US // 100
        controllers = groups / "cgroup.controllers"
        is_unified = controllers.exists() and "cpu" in controllers.read_text().split()
        self.path = (groups if is_unified else groups / "cpu") / name
        self.path.mkdir()
        if is_unified:
            (self.path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
            with contextlib.suppress(OSError):  # a group without real time: the card of libvcuda/sim/state/realtime.h
                (self.path / "cpu.rt_runtime_us").write_text(str(REALTIME_US))

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()

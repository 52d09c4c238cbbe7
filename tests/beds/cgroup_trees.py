"""A test's cgroups in every hierarchy: kill their processes, and remove them after the last one has exited."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def kill(name: str) -> None:
    """Kill all processes in cgroup `name` (with its leading slash) and below it."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for directory, _, _ in os.walk(f"{hierarchy}{name}"):
            for pid in Path(directory, "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def remove(name: str, seconds: float = 10) -> None:
    """Remove cgroup `name` (with its leading slash) and all below it. OSError when a process stays in one."""
    end = time.monotonic() + seconds
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for directory, _, _ in os.walk(f"{hierarchy}{name}", topdown=False):
            _remove_one(directory, end)


def _remove_one(directory: str, end: float) -> None:
    while True:
        try:
            return os.rmdir(directory)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
        time.sleep(0.02)

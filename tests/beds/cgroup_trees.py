"""Removal of a test's cgroups from every hierarchy, after their last processes have exited."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path


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

"""Whether a process still lives: pid and start time together, because pids come again.

Reads /proc/<pid>/stat only; the root of /proc is an argument.
"""

from __future__ import annotations

import os

DEAD_STATES = (b"Z", b"X", b"x")
START_TIME_FIELD = 22


def start_time(pid: int, proc: str = "/proc") -> int:
    """Clock ticks after boot at which `pid` began; 0 when there is no such process, or only its remains."""
    if pid <= 0:
        return 0
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    try:
        content = os.read(fd, 4096)
    except ProcessLookupError:
        return 0
    finally:
        os.close(fd)
    fields = content[content.rfind(b")") + 2 :].split()  # the name, field 2, may hold blanks and parentheses
    if len(fields) < START_TIME_FIELD - 2 or fields[0] in DEAD_STATES:
        return 0
    return int(fields[START_TIME_FIELD - 3])


def lives(pid: int, started: int, proc: str = "/proc") -> bool:
    return started != 0 and start_time(pid, proc) == started

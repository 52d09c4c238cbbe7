"""Processes in /proc: whether one still lives, by pid and start time together, because pids are reused.

Belongs here: /proc/<pid>/stat, and comm for messages. Not here: cgroups (cgroup). The root of /proc is an argument.
"""

from __future__ import annotations

import os

DEAD_STATES = (b"Z", b"X", b"x")
THREADS_FIELD = 20
START_TIME_FIELD = 22
FLAGS_FIELD = 9
PF_EXITING = 0x00000004
PF_KTHREAD = 0x00200000


def start_time(pid: int, proc: str = "/proc") -> int:
    """The start time of `pid` in clock ticks after boot; 0 when there is no such process, or it is a zombie.

    A process whose first thread has ended looks like a zombie, too, but has other threads, and lives on.
    """
    fields = _stat(pid, proc)
    if len(fields) < START_TIME_FIELD - 2:
        return 0
    if fields[0] in DEAD_STATES and int(fields[THREADS_FIELD - 3]) <= 1:
        return 0
    return int(fields[START_TIME_FIELD - 3])


def parent(pid: int, proc: str = "/proc") -> int:
    """The parent's pid; 0 when there is no such process."""
    fields = _stat(pid, proc)
    return int(fields[1]) if len(fields) > 1 else 0


def is_kernel_thread(pid: int, proc: str = "/proc") -> bool:
    """Whether `pid` has no program. Its mount namespace is the boot's, which is not that of pid 1 on every node."""
    return _has(PF_KTHREAD, pid, proc)


def is_exiting(pid: int, proc: str = "/proc") -> bool:
    """Whether `pid` is ending. A pid namespace's init has left its cgroup by then, and waits for those in there."""
    return _has(PF_EXITING, pid, proc)


def _has(flag: int, pid: int, proc: str) -> bool:
    fields = _stat(pid, proc)
    return len(fields) > FLAGS_FIELD - 3 and bool(int(fields[FLAGS_FIELD - 3]) & flag)


def command(pid: int, proc: str = "/proc") -> str:
    """The kernel's name of a process, "" when it is gone. A process can choose any name."""
    try:
        fd = os.open(f"{proc}/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 64).decode("utf-8", "replace").rstrip("\n")
        finally:
            os.close(fd)
    except OSError:
        return ""


def _stat(pid: int, proc: str) -> list[bytes]:
    """The fields of /proc/<pid>/stat from the third one, the state; [] when there is no such process."""
    if pid <= 0:
        return []
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return []
    try:
        content = os.read(fd, 4096)
    except ProcessLookupError:
        return []
    finally:
        os.close(fd)
    return content[content.rfind(b")") + 2 :].split()  # the name, field 2, may hold blanks and parentheses


def lives(pid: int, started: int, proc: str = "/proc") -> bool:
    return started != 0 and start_time(pid, proc) == started

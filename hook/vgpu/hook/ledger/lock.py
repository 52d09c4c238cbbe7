"""The ledger's lock: one holder, and waiting processes get it in the order of arrival.

Belongs here: `<run>/ledger.lock`. Not here: the work under it. The lock is flock(2). A process that finds it taken also
takes a *ticket*: a record lock (open file description lock, Linux 3.15) on one byte of the same file, at the offset of
the nanosecond of its arrival. A process may take the lock when no ticket is before its own. When a process dies, the
kernel frees both, so there is nothing to clean up. The file's time of modification says when a process of the line last
took the lock: a line in which nobody does is stuck.

Tickets decide only the order: even without tickets, or with wrong ones, there is only one holder.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from vgpu.config import paths
from vgpu.config.errors import VgpuError

TIMEOUT = 20.0  #: seconds in which no process of the line takes the lock
STALL = 1.0  #: seconds after which we pass a process that does not take the lock: it was stopped, or works for long
NEAR = 0.002  #: seconds between two looks, as the first or second in the line
FAR = 0.01  #: the same further back
FARTHEST = 0.05  #: the same behind MANY, whose looks would otherwise take the time of those that work
MANY = 32  #: processes

_FLOCK = struct.Struct("hhqqi4x")  #: struct flock where off_t has 64 bits: type, whence, start, len, pid
_NO_END = (1 << 63) - 1


class Lock:
    """The lock below `run_dir`. It makes the directory when it is missing, at the first start after boot.

    Without `wait` it raises BlockingIOError when another process holds the lock, and ignores the line. With `wait` it
    raises VgpuError when the line has not moved for TIMEOUT seconds. No step under the lock takes that long, so a
    stopped process holds it, and the starts on the node must not wait for ever.
    """

    __slots__ = ("_fd", "_path", "_wait")

    def __init__(self, run_dir: str, wait: bool = True) -> None:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        self._wait = wait
        self._path = paths.ledger_lock(run_dir)
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._take()
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            os.close(self._fd)
        except OSError:
            return  # the kernel has closed the file nevertheless, and what was done under the lock is done

    def _take(self) -> None:
        if not self._wait:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif first_ticket(self._fd, 0) >= 0 or not self._free():
            self._line_up(_draw(self._fd))

    def _free(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _line_up(self, ticket: int) -> None:
        """Wait until no moving process is before `ticket`, and take the lock."""
        passed, ahead, length = 0, ticket, tickets_before(self._fd, ticket)
        taken, since = 0, time.monotonic()
        moved = since
        while True:
            found, last, now = first_ticket(self._fd, passed, ticket), self._last_taken(), time.monotonic()
            if last != taken:  # those that this process has passed go on, too
                taken, moved = last, now
            if found != ahead:
                ahead, since = found, now
            elif now - since > STALL:
                since, length = now, tickets_before(self._fd, ticket)
                if found >= 0:
                    passed = found + 1
                    ahead = found = first_ticket(self._fd, passed, ticket)
            if found < 0 and self._free():
                os.utime(self._fd)
                return
            if now - moved > TIMEOUT:
                raise VgpuError(self._path, expected=f"the lock in {TIMEOUT:.0f} s", found="held by another process",
                                do=f"find it with: fuser -v {self._path}")  # fmt: skip
            near = found < 0 or first_ticket(self._fd, found + 1, ticket) < 0
            time.sleep(NEAR if near else FAR if length < MANY else FARTHEST)

    def _last_taken(self) -> int:
        """When a process of the line last took the lock, in nanoseconds: it sets the file's time."""
        return os.fstat(self._fd).st_mtime_ns


def _draw(fd: int) -> int:
    """Take a ticket for the present moment. It is held until `fd` is closed."""
    while True:
        ticket = time.monotonic_ns()  # one clock for all processes
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, ticket, 1, 0))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: a process arrived in the same nanosecond
            continue
        return ticket


def tickets_before(fd: int, ticket: int) -> int:
    """How many processes are in the line before `ticket`. It may miss some that arrived at the same moment."""
    count, found = 0, first_ticket(fd, 0, ticket)
    while found >= 0:
        count, found = count + 1, first_ticket(fd, found + 1, ticket)
    return count


def first_ticket(fd: int, start: int, end: int = _NO_END) -> int:
    """A ticket from `start` to before `end` that another process holds, -1 when there is none.

    Of several it is the one that was taken first: the kernel keeps such locks of different holders in that order.
    """
    if start >= end:
        return -1
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
    kind, _, found, _, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, query))
    return -1 if kind == fcntl.F_UNLCK else int(found)

"""The ledger's lock: one holder, and who waits gets it in the order of arrival.

Belongs here: `<run>/ledger.lock` and nothing that is done under it. The lock is flock(2). Who finds it taken holds a
*ticket* besides, a record lock (open file description lock, Linux 3.15) on one byte of the same file, at the offset of
the nanosecond in which it came. The lock is for whoever has no ticket before its own. The kernel frees both when their
process dies, however it dies, so there is nothing to tidy up and no state in the file.

Tickets are about order alone: with none, or with wrong ones, there is still one holder.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from vgpu.config import paths
from vgpu.config.errors import VgpuError

PATIENCE = 20.0  #: seconds in which nobody before us has come any further
STALL = 1.0  #: seconds after which one that does not take its turn is passed over: it was stopped, or works for long
NEAR = 0.002  #: from look to look, as the first or second in the line
FAR = 0.01

_FLOCK = struct.Struct("hhqqi4x")  #: struct flock where off_t has 64 bits: type, whence, start, len, pid
_NO_END = (1 << 63) - 1


class Lock:
    """The lock below `run_dir`. The directory is made when it is missing: the first start after boot.

    Without `wait`, BlockingIOError when another holds it; who waits is not asked then. With it, VgpuError when the line
    has not moved for PATIENCE seconds, which no step under the lock takes: a stopped process must not stop every start
    on the node without a word.
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
        os.close(self._fd)

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
        """Wait until nobody who moves is before `ticket`, and for the lock."""
        passed, ahead = 0, ticket
        since = moved = time.monotonic()
        while True:
            found, now = first_ticket(self._fd, passed, ticket), time.monotonic()
            if found != ahead:
                ahead, since, moved = found, now, now
            elif found >= 0 and now - since > STALL:  # to pass somebody is not to get on: `moved` stays
                passed, since = found + 1, now
                ahead = found = first_ticket(self._fd, passed, ticket)
            if found < 0 and self._free():
                return
            if now - moved > PATIENCE:
                raise VgpuError(self._path, expected=f"the lock in {PATIENCE:.0f} s", found="held by another process",
                                do=f"see who: fuser -v {self._path}")  # fmt: skip
            near = found < 0 or first_ticket(self._fd, found + 1, ticket) < 0
            time.sleep(NEAR if near else FAR)


def _draw(fd: int) -> int:
    """A ticket of the present moment, held until `fd` is closed."""
    while True:
        ticket = time.monotonic_ns()  # one clock for all processes
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, ticket, 1, 0))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody came in the same nanosecond
            continue
        return ticket


def first_ticket(fd: int, start: int, end: int = _NO_END) -> int:
    """A ticket from `start` to before `end` that another holds, -1 when there is none.

    Of several it is the one that was drawn first: the kernel keeps such locks of different holders in that order.
    """
    if start >= end:
        return -1
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
    kind, _, found, _, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return -1 if kind == fcntl.F_UNLCK else int(found)

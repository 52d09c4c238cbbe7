"""Opening files that a process in a container can reach too, without waiting for the leases on them.

Belongs here: the open, and how often it is tried. A process with the file's uid can take a lease on it (fcntl(2),
F_SETLEASE). An open(2) that conflicts with the lease waits until the holder gives it up, at most
/proc/sys/fs/lease-break-time seconds (45). With O_NONBLOCK it fails at once instead. The kernel has told the holder by
then, so a later attempt succeeds unless the holder takes a new lease. The hook's process loads this module.
"""

from __future__ import annotations

import os
import time

from vgpu.config.errors import VgpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 1.0  #: seconds for those who hold no lock
PAUSE = 0.02


def opened(path: str, flags: int, patience: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> int:
    """An fd of `path`; VgpuError while a lease is in the way, after `patience` seconds of attempts.

    Who holds the ledger's lock has no patience. Other errors are OSError as from open(2).
    """
    attempts = int(patience / PAUSE)
    while True:
        try:
            return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            if attempts <= 0:
                do = "find its holder in /proc/locks by the file's inode, and end that container"
                found = "one that a process has a lease on"
                raise VgpuError(path, expected="a file to open at once", found=found, do=do) from None
        attempts -= 1
        sleep(PAUSE)

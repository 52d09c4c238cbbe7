"""One instance of a daemon on a node: a lock file that the kernel releases when its holder dies.

Belongs here: taking the lock. Does not belong here: what a second instance does (exit or wait), which each daemon
decides.
"""

from __future__ import annotations

import fcntl
import os

from vgpu.config.errors import VgpuError
from vgpu.hook import error_line


def take(path: str, mode: int = 0o755, do: str = "run as root") -> int:
    """An fd that holds the lock at `path` while it is open, or -1 if another instance holds the lock.

    `mode` is that of the directory, if it has to be made. `do` is what the error asks of the administrator.
    Raises VgpuError if the file cannot be opened.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=mode, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise VgpuError(path, expected="a file to lock", found=error.strerror, do=do) from error
    except OSError as error:
        raise error_line.meaning("", error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd

"""Being the only one: a lock file that the kernel frees when its holder dies, for the daemons of a node.

Belongs here: taking it. What a second instance does (end, or wait) is the daemon's own.
"""

from __future__ import annotations

import fcntl
import os

from vgpu.config.errors import VgpuError


def take(path: str) -> int:
    """An fd that holds the lock at `path` while open; -1 when another instance has it. VgpuError: no such file."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise VgpuError(path, expected="a file to lock", found=error.strerror, do="run as root") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd

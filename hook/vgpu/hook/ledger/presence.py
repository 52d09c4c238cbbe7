"""The presence file, `<run>/presence`, which all containers with a share have in common. By their locks on it the
containers see which of them are at work on which card (libvcuda/src/compute/presence.h).

Belongs here: making sure that the file exists. Not here: the locks. Locks belong to the inode, so the file is made once
and never replaced; a damaged file is repaired in place. The caller holds the ledger's lock.
"""

from __future__ import annotations

import os
import stat

from vgpu.config import core_schedule, paths, records
from vgpu.config.errors import VgpuError

CONTENT = bytes(core_schedule.PRESENCE_SIZE)
MODE = 0o444


def ensure(run_dir: str) -> bool:
    """Make the file where it is missing. True then: containers that run already do not have it.

    After OSError or VgpuError there is no file, and no container with a share may start.
    """
    path = paths.presence(run_dir)
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        records.write_bytes(path, CONTENT, MODE, paths.ledger_temporary(run_dir))
        return True
    if not stat.S_ISREG(found):
        do = "remove it while no container with a share runs"
        raise VgpuError(path, expected="a regular file", found=stat.filemode(found), do=do)
    if found != stat.S_IFREG | MODE or not _is_sound(path):
        _repair(path)
    return False


def _is_sound(path: str) -> bool:
    try:
        return records.read_bounded(path, core_schedule.PRESENCE_SIZE) == CONTENT
    except VgpuError:
        return False


def _repair(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fchmod(fd, MODE)
        os.pwrite(fd, CONTENT, 0)
        os.ftruncate(fd, len(CONTENT))
    finally:
        os.close(fd)

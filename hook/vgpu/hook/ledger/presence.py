"""The presence file (`<run>/presence`): the one file that all containers with a share have, to tell each other by locks
on it who is at work on which card (libvcuda/src/compute/presence.h).

Belongs here: that it is there. Locks belong to the inode, so the file is made once and never replaced: what is wrong
with it is put right in place. The caller holds the ledger's lock.
"""

from __future__ import annotations

import os
import stat

from vgpu.config import core_schedule, paths, records
from vgpu.config.errors import VgpuError

CONTENT = bytes(core_schedule.PRESENCE_SIZE)
MODE = 0o444


def ensure(run_dir: str) -> bool:
    """Make it where it is missing: True then, and who runs already does not have it.

    OSError or VgpuError: there is none, and no container with a share must start.
    """
    path = paths.presence(run_dir)
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        records.write_bytes(path, CONTENT, MODE)
        return True
    if not stat.S_ISREG(found):
        do = "remove it while no container with a share runs"
        raise VgpuError(path, expected="a regular file", found=stat.filemode(found), do=do)
    if found != stat.S_IFREG | MODE or not _is_sound(path):
        _mend(path)
    return False


def _is_sound(path: str) -> bool:
    try:
        return records.read_bounded(path, core_schedule.PRESENCE_SIZE) == CONTENT
    except VgpuError:
        return False


def _mend(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fchmod(fd, MODE)
        os.pwrite(fd, CONTENT, 0)
        os.ftruncate(fd, len(CONTENT))
    finally:
        os.close(fd)

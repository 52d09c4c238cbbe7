"""The presence file, `<run>/presence`, which all containers with a share have in common. By their locks on it the
containers see which of them are at work on which card (libvcuda/src/compute/presence.h).

Belongs here: making sure that the file exists. Not here: the locks. Locks belong to the inode, so all containers have
the same one, and the file is made once. Its content does not matter, only its size. The caller holds the ledger's lock.
A process in any container can take a lease on the file. So this module looks at it by an O_PATH descriptor, which no
lease delays. It opens only a file whose size is wrong, and without waiting.
"""

from __future__ import annotations

import os
import stat

from vgpu.config import core_schedule, leases, paths, records
from vgpu.config.errors import VgpuError

CONTENT = bytes(core_schedule.PRESENCE_SIZE)
MODE = 0o444

#: What was wrong with the file, as the end of a sentence.
MISSING = "was missing: containers from before do not see the ones that start now"
RESIZED = "had another size, and has its own again"
LEASED = "has another size, and a process has a lease on it: containers that start now work without turns"


def ensure(run_dir: str) -> str:
    """Make the file where it is missing, and restore its size and mode; what was wrong (see above), else "".

    A process with CAP_SYS_ADMIN in a container can change the size. The file stays the same one even then, because the
    containers that run have it. After OSError or VgpuError no container with a share may start.
    """
    path = paths.presence(run_dir)
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        records.write_bytes(path, CONTENT, MODE, paths.ledger_temporary(run_dir))
        return MISSING
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            do = "remove it while no container with a share runs"
            raise VgpuError(path, expected="a regular file", found=stat.filemode(found.st_mode), do=do)
        if stat.S_IMODE(found.st_mode) != MODE:
            os.chmod(f"/proc/self/fd/{fd}", MODE)
        return "" if found.st_size == len(CONTENT) else _resized(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _resized(path: str) -> str:
    try:
        fd = leases.opened(path, os.O_WRONLY)
    except VgpuError:
        return LEASED
    try:
        os.ftruncate(fd, len(CONTENT))
    finally:
        os.close(fd)
    return RESIZED

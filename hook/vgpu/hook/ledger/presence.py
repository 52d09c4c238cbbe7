"""The presence file, `<run>/presence`, which all containers with a share have in common. By their locks on it the
containers see which of them are at work on which card (libvcuda/src/compute/presence.h).

Belongs here: making sure that the file exists. Not here: the locks. Locks belong to the inode, so all containers have
the same one, and the file is made once. Its content does not matter, only its size. The caller holds the ledger's lock.
A process in any container can take a lease on the file. So this module looks at it by an O_PATH descriptor, which no
lease delays, and never opens it for reading or writing.
"""

from __future__ import annotations

import os
import stat

from vgpu.config import core_schedule, paths, records
from vgpu.config.errors import VgpuError

CONTENT = bytes(core_schedule.PRESENCE_SIZE)
MODE = 0o444


MISSING, DAMAGED = "missing", "damaged"


def ensure(run_dir: str) -> str:
    """Make the file where it is missing or of another size, and return which of them it was, else "".

    Containers that run already do not have the new one.
    After OSError or VgpuError there is no file, and no container with a share may start.
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
        if found.st_size != len(CONTENT):
            records.write_bytes(path, CONTENT, MODE, paths.ledger_temporary(run_dir))
            return DAMAGED
        if stat.S_IMODE(found.st_mode) != MODE:
            os.chmod(f"/proc/self/fd/{fd}", MODE)
    finally:
        os.close(fd)
    return ""
